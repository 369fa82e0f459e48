// SPDX-License-Identifier: Apache-2.0
//
// The packets of InfiniBand's reliable connection (RC) transport as RoCEv2 carries them in UDP datagrams to port 4791:
// base transport header, extended headers by opcode, payload with pad, and the invariant CRC behind it all.
//
// Thread-safety: values and free functions.
// Errors:        what cannot be a packet is nullopt. Nothing that arrives is trusted: a decoded packet has all the
// headers
//                of its opcode, and a payload within the bytes it came in.
// Source:        InfiniBand Architecture Specification, volume 1, chapter 9, and its annex 17 (RoCEv2).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace termfs::driver::roce {

inline constexpr uint16_t kUdpPort = 4791;
inline constexpr uint16_t kDefaultPartition = 0xffff;
inline constexpr uint8_t kLastAttempt = 127;
inline constexpr uint32_t kSequenceMask = 0xffffff;  // of packet sequence numbers, message sequence numbers, QP numbers
inline constexpr size_t kCrcBytes = 4;
inline constexpr size_t kMaxHeaderBytes = 12 + 28;  // with an AtomicETH

enum class Op : uint8_t {
  kSendFirst = 0x00,
  kSendMiddle = 0x01,
  kSendLast = 0x02,
  kSendLastImm = 0x03,
  kSendOnly = 0x04,
  kSendOnlyImm = 0x05,
  kWriteFirst = 0x06,
  kWriteMiddle = 0x07,
  kWriteLast = 0x08,
  kWriteLastImm = 0x09,
  kWriteOnly = 0x0a,
  kWriteOnlyImm = 0x0b,
  kReadRequest = 0x0c,
  kReadResponseFirst = 0x0d,
  kReadResponseMiddle = 0x0e,
  kReadResponseLast = 0x0f,
  kReadResponseOnly = 0x10,
  kAcknowledge = 0x11,
  kAtomicAcknowledge = 0x12,
  kCompareSwap = 0x13,
  kFetchAdd = 0x14,
};
inline constexpr uint8_t kOps = 0x15;

constexpr bool IsResponse(Op op) { return op >= Op::kReadResponseFirst && op <= Op::kAtomicAcknowledge; }
constexpr bool IsAtomic(Op op) { return op == Op::kCompareSwap || op == Op::kFetchAdd; }

// What an ACK extended header says: two bits of kind, five of value.
enum class AckKind : uint8_t { kAck = 0, kReceiverNotReady = 1, kReserved = 2, kNak = 3 };
enum class NakCode : uint8_t {
  kSequenceError = 0,
  kInvalidRequest = 1,
  kRemoteAccess = 2,
  kRemoteOperational = 3,
  kInvalidReadRequest = 4,
};
struct Ack {
  AckKind kind = AckKind::kAck;
  uint8_t value = 0;     // kAck: credits; kReceiverNotReady: a timer's code; kNak: a NakCode
  uint32_t message = 0;  // the responder's message sequence number
};

// A packet without its CRC. What an opcode does not have stays zero.
struct Packet {
  Op op = Op::kSendOnly;
  bool solicited = false;
  bool wants_ack = false;
  uint16_t partition = kDefaultPartition;
  uint32_t queue_pair = 0;  // the receiver's
  uint32_t sequence = 0;    // packet sequence number, 24 bits
  // Of a READ request, and of its response: which time it is asked for, in 7 bits that the standard reserves. It keeps
  // a late part of one response from completing another one. A peer that knows nothing of it answers with 0.
  uint8_t attempt = 0;  // up to kLastAttempt, and on from 1

  uint64_t address = 0;  // WRITE first and only, READ request, atomics
  uint32_t rkey = 0;
  uint32_t length = 0;       // of the whole message; not of atomics
  uint64_t swap_or_add = 0;  // atomics
  uint64_t compare = 0;      // compare and swap
  Ack ack{};                 // acknowledges; READ responses but middle ones
  uint64_t original = 0;     // atomic acknowledge: the value before
  uint32_t imm = 0;          // with immediate data
  std::span<const std::byte> payload;
};

// From the base transport header up to the payload.
size_t HeaderBytes(Op op);
constexpr size_t PadBytes(size_t payload) { return (4 - payload % 4) % 4; }
constexpr size_t PacketBytes(size_t header, size_t payload) { return header + payload + PadBytes(payload); }

// Writes the headers of `packet` (whose payload may still be to be filled in; its size counts) to `to`, which has room
// for HeaderBytes(packet.op); and zeros to the pad behind the payload, where `to` has room for PacketBytes.
void EncodeHeaders(const Packet& packet, std::byte* to);
// `bytes`: from the base transport header to the end of the pad.
std::optional<Packet> Decode(std::span<const std::byte> bytes);

inline constexpr size_t kLeastPacketBytes = 12;  // a base transport header

// The invariant CRC over a datagram from its IP header on, with what routers may change taken as ones; `transport` is
// the packet, REQUIRES: of kLeastPacketBytes at least. In the order of the bytes on the wire.
using InvariantCrc = std::array<std::byte, kCrcBytes>;
// `ip`: an IPv4 header without options; `udp`: the UDP header.
InvariantCrc InvariantCrcOf4(std::span<const std::byte, 20> ip, std::span<const std::byte, 8> udp,
                             std::span<const std::byte> transport);
InvariantCrc InvariantCrcOf6(std::span<const std::byte, 40> ip, std::span<const std::byte, 8> udp,
                             std::span<const std::byte> transport);

}  // namespace termfs::driver::roce
