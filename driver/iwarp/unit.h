// SPDX-License-Identifier: Apache-2.0
//
// The units of an iWARP stream as they lie in TCP: MPA's frame (FPDU: length, what it carries, pad, CRC) around a
// segment of DDP with RDMAP's header. Markers are not used.
//
//   tagged segment    WRITE, READ response: names the memory by key (STag) and offset (TO)
//   untagged segment  SEND, READ request, Terminate: a message of a queue, by number (MSN) and offset (MO)
//
// Thread-safety: values and free functions.
// Errors:        what cannot be a unit is an Error that Terminate reports to the peer. Nothing that arrives is trusted:
//                a decoded unit has a payload within the bytes that it came in, and the queue that its opcode has.
// Units:         bytes; message numbers count from 1.
// Source:        RFC 5044 (MPA), RFC 5041 (DDP), RFC 5040 (RDMAP).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>

#include "driver/nic.h"

namespace termfs::driver::iwarp {

enum class Op : uint8_t {
  kWrite = 0,
  kReadRequest = 1,
  kReadResponse = 2,
  kSend = 3,
  kSendInvalidate = 4,  // not supported
  kSendSolicited = 5,   // a SEND, here
  kSendSolicitedInvalidate = 6,
  kTerminate = 7,
};
constexpr bool IsTagged(Op op) { return op == Op::kWrite || op == Op::kReadResponse; }

// Of untagged messages.
enum class Queue : uint32_t { kSend = 0, kReadRequest = 1, kTerminate = 2 };
constexpr Queue QueueOf(Op op) {
  return op == Op::kReadRequest ? Queue::kReadRequest : op == Op::kTerminate ? Queue::kTerminate : Queue::kSend;
}

inline constexpr size_t kLengthBytes = 2;
inline constexpr size_t kCrcBytes = 4;
inline constexpr size_t kTaggedBytes = 14;    // DDP's and RDMAP's headers
inline constexpr size_t kUntaggedBytes = 18;  // the same
inline constexpr size_t kMostFrameBytes = 16 << 10;
// Of one unit. A READ response carries whole pages, so that each is of one version.
inline constexpr size_t kMostPayload = kMostFrameBytes - kLengthBytes - kUntaggedBytes - kCrcBytes - 3;
inline constexpr size_t kMostPagesOfResponse = 3;
static_assert(kMostPagesOfResponse * kPageSize <= kMostPayload);

struct Unit {
  Op op = Op::kSend;
  bool last = true;  // of its message
  // Tagged.
  RKey key{};
  uint64_t offset = 0;
  // Untagged.
  uint32_t message = 0;
  uint32_t message_offset = 0;
  std::span<const std::byte> payload{};
};

constexpr size_t HeaderBytes(Op op) { return IsTagged(op) ? kTaggedBytes : kUntaggedBytes; }
// Where the payload begins in the frame.
constexpr size_t PayloadAt(Op op) { return kLengthBytes + HeaderBytes(op); }
constexpr size_t FrameBytesOf(size_t segment) {
  return kLengthBytes + segment + (4 - (kLengthBytes + segment) % 4) % 4 + kCrcBytes;
}
constexpr size_t FrameBytes(Op op, size_t payload) { return FrameBytesOf(HeaderBytes(op) + payload); }

// Writes everything of the frame but the payload, which lies at `to` + PayloadAt already. `to` has room for FrameBytes.
void Seal(const Unit& unit, bool with_crc, std::byte* to);

// What an end has to complain about, with the numbers of RFC 5040's Terminate message.
struct Error {
  enum class Layer : uint8_t { kRdmap = 0, kDdp = 1, kMpa = 2 } layer = Layer::kRdmap;
  uint8_t type = 0;
  uint8_t code = 0;
  friend bool operator==(const Error&, const Error&) = default;
};
inline constexpr Error kLocalCatastrophe{Error::Layer::kRdmap, 0, 0};
inline constexpr Error kReadOfInvalidKey{Error::Layer::kRdmap, 1, 0x00};
inline constexpr Error kUnexpectedOpcode{Error::Layer::kRdmap, 2, 0x06};
inline constexpr Error kWrongRdmapVersion{Error::Layer::kRdmap, 2, 0x05};
inline constexpr Error kUnspecified{Error::Layer::kRdmap, 2, 0xff};
inline constexpr Error kTaggedOfInvalidKey{Error::Layer::kDdp, 1, 0x00};
inline constexpr Error kTaggedOutOfBounds{Error::Layer::kDdp, 1, 0x01};
inline constexpr Error kTaggedOfWrongVersion{Error::Layer::kDdp, 1, 0x04};
inline constexpr Error kInvalidQueue{Error::Layer::kDdp, 2, 0x01};
inline constexpr Error kNoReceive{Error::Layer::kDdp, 2, 0x02};
inline constexpr Error kInvalidMessageNumber{Error::Layer::kDdp, 2, 0x03};
inline constexpr Error kInvalidMessageOffset{Error::Layer::kDdp, 2, 0x04};
inline constexpr Error kMessageTooLong{Error::Layer::kDdp, 2, 0x05};
inline constexpr Error kUntaggedOfWrongVersion{Error::Layer::kDdp, 2, 0x06};
inline constexpr Error kWrongCrc{Error::Layer::kMpa, 0, 0x02};

// Of the frame that `bytes` begin with: its length, or nothing where that has not arrived yet.
std::optional<size_t> FrameLength(std::span<const std::byte> bytes);
// REQUIRES: `frame` has the bytes that FrameLength says. The payload is within it.
std::variant<Unit, Error> Decode(std::span<const std::byte> frame, bool with_crc);

// The payload of a READ request.
struct ReadRequest {
  RKey sink{};  // where the response goes: its key and offset in the response's segments
  uint64_t sink_offset = 0;
  uint32_t length = 0;
  RKey source{};
  uint64_t source_offset = 0;
};
inline constexpr size_t kReadRequestBytes = 28;
void Encode(const ReadRequest& request, std::byte* to);
std::optional<ReadRequest> DecodeReadRequest(std::span<const std::byte> payload);

// The payload of a Terminate message, without the headers that it may quote.
inline constexpr size_t kTerminateBytes = 4;
void Encode(const Error& error, std::byte* to);
std::optional<Error> DecodeTerminate(std::span<const std::byte> payload);

}  // namespace termfs::driver::iwarp
