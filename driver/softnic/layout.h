// SPDX-License-Identifier: Apache-2.0
//
// Everything that two software RNICs share: the bytes of an Endpoint, the inbox of a queue pair, the table of valid
// keys, and the messages on the queue pairs' sockets. Both ends are processes of one host, but not necessarily of one
// build: kVersion changes with any of this.
//
// Sockets: every queue pair end makes a socket pair and keeps one end (the answer socket, served by the RNIC thread);
// the other goes to the peer (its request socket, read by the queue pair's thread). Requests go one way, answers and
// wake-ups the other, and the death of either process hangs up both. Wake-ups go this way, not by an eventfd, because
// an eventfd would be one open file for both sides: a hostile peer could fill it, make it blocking, and so hang whoever
// wakes it. A socket can be told with every call not to block, and shows the hang-up as well.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace termfs::driver::softnic {

inline constexpr uint32_t kVersion = 4;
inline constexpr uint64_t kEndpointMagic = 0x30434e4946545244;  // "DRTFINC0"
inline constexpr uint32_t kMaxSlots = 1u << 16;
inline constexpr uint32_t kMaxMessage = 1u << 24;

struct EndpointBytes {
  uint64_t magic;
  uint32_t version;
  uint32_t qp_num;
  uint32_t slots;        // power of two
  uint32_t max_message;  // bytes
};

enum EndpointFd : size_t { kInboxFd, kRequestSocketFd, kValidityFd, kEndpointFds };

// --- The inbox: control words, then slots, then as many large payloads. Its owner receives; the peer maps it too, and
// writes messages into it. The owner trusts nothing in it but keeps its own counters; message number n lies in slot
// n % slots, and receive number n takes it. A payload that does not fit into its slot lies in a large one, of which the
// peer takes the one that became free last: so the inbox takes memory, which comes when it is touched, by how much is
// under way at a time.

// Lines 128 bytes apart: processors fetch them in pairs, and what one side writes all the time would come and go with
// what the other one reads.
struct InboxControl {
  // Set by the owner before it sleeps, cleared by the peer that wakes it.
  alignas(128) std::atomic<uint32_t> armed;
  // Receives posted so far, by the owner: the peer's credit.
  alignas(128) std::atomic<uint64_t> posted;
  // Set by the peer before it sleeps with a message that finds no receive, cleared by the owner that wakes it.
  alignas(128) std::atomic<uint32_t> sender_waiting;
  // Set by the owner when it closes the connection, before anybody may take the peer for gone. A peer that was stopped
  // hears nothing of that on its sockets before it runs again, but sees it here after a READ.
  alignas(128) std::atomic<uint32_t> closed;
  // The large payloads of messages before this number are free again, but for those that have been used since.
  alignas(128) std::atomic<uint64_t> taken;
};

enum class SlotKind : uint32_t {
  kSend = 1,
  kWriteWithImm = 2,  // no payload; length says what was written
  kTooLong = 3,       // the sender gave up: the message does not fit the receive
};

struct SlotHeader {
  std::atomic<uint64_t> sequence;  // message number + 1, stored last
  std::atomic<uint32_t> length;
  std::atomic<uint32_t> imm;
  std::atomic<uint32_t> kind;
  std::atomic<uint32_t> receive_length;  // by the owner, before it posts: what the receive holds
  std::atomic<uint32_t> large;           // which large payload it is, where `length` does not fit into the slot
  uint32_t unused;
};
static_assert(sizeof(SlotHeader) == 32);
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

inline constexpr size_t kSlotsOffset = 640;
static_assert(sizeof(InboxControl) <= kSlotsOffset);

inline constexpr size_t kSlotStride = 256;
inline constexpr uint32_t kSmallPayload = kSlotStride - sizeof(SlotHeader);
constexpr size_t LargeStride(uint32_t max_message) {
  return max_message <= kSmallPayload ? 0 : (max_message + size_t{127}) & ~size_t{127};
}
constexpr size_t LargeOffset(uint32_t slots) { return kSlotsOffset + size_t{slots} * kSlotStride; }
constexpr size_t InboxBytes(uint32_t slots, uint32_t max_message) {
  return LargeOffset(slots) + size_t{slots} * LargeStride(max_message);
}

// --- The validity table, one per Nic: a word per remotely reachable memory region. A key that a peer has resolved is
// valid as long as its word still holds the generation that came with the answer.

//
// Behind the words lies a robust mutex, which the Nic's RNIC thread holds as long as it lives. Its first word is a
// futex with the number of the thread in it, which the kernel takes out when the thread dies, be it of SIGKILL, and
// long before anything can take the dead process's place.

inline constexpr uint32_t kValiditySlots = 1u << 16;
inline constexpr size_t kServingOffset = kValiditySlots * sizeof(std::atomic<uint32_t>);
inline constexpr size_t kValidityBytes = kServingOffset + 128;

// --- Messages on the sockets.

enum class MessageType : uint32_t {
  kWake = 1,   // answer socket: there is something in your inbox, or a receive for what you wait to send
  kResolve,    // request: what is behind `rkey`?
  kResolved,   // answer, with descriptors: one of a memory region, or page table and frames of a TERM region
  kFault,      // request: `page` of the ODP region `rkey` is absent
  kFaultDone,  // answer
};

struct SocketMessage {
  uint32_t type = 0;
  uint32_t rkey = 0;
  uint32_t ok = 0;           // kResolved, kFaultDone
  uint32_t has_pages = 0;    // kResolved: 1 for a region with a page table
  uint32_t region_kind = 0;  // then: driver::RegionKind
  uint32_t access = 0;       // bits of driver::Access
  uint32_t validity_slot = 0;
  uint32_t validity_generation = 0;
  uint64_t page = 0;       // kFault, kFaultDone
  uint64_t offset = 0;     // of the memory region within its object
  uint64_t size = 0;       // of the memory region
  uint64_t max_pages = 0;  // of a region with a page table
};
inline constexpr size_t kMaxMessageFds = 2;

}  // namespace termfs::driver::softnic
