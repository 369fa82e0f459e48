// SPDX-License-Identifier: Apache-2.0
#include "driver/iwarp/unit.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "driver/big_endian.h"
#include "driver/checksum.h"

namespace termfs::driver::iwarp {
namespace {

// The first two bytes of a segment: DDP's control, RDMAP's control.
constexpr uint16_t kTagged = 0x8000;
constexpr uint16_t kLast = 0x4000;
constexpr uint16_t kDdpVersionMask = 0x0300;
constexpr uint16_t kDdpVersion = 0x0100;
constexpr uint16_t kRdmapVersionMask = 0x00c0;
constexpr uint16_t kRdmapVersion = 0x0040;
constexpr uint16_t kOpcodeMask = 0x000f;
constexpr size_t kControlBytes = 2;

// Castagnoli's, in the byte order of iSCSI.
std::array<std::byte, kCrcBytes> CrcOf(std::span<const std::byte> bytes) {
  const uint32_t crc = Crc32c(bytes);
  return {std::byte(crc & 0xff), std::byte(crc >> 8 & 0xff), std::byte(crc >> 16 & 0xff), std::byte(crc >> 24)};
}

}  // namespace

void Seal(const Unit& unit, bool with_crc, std::byte* to) {
  const size_t segment = HeaderBytes(unit.op) + unit.payload.size();
  BigEndianWriter writer(to);
  writer.Put(segment, kLengthBytes);
  writer.Put((IsTagged(unit.op) ? kTagged : 0U) | (unit.last ? kLast : 0U) | kDdpVersion | kRdmapVersion |
                 static_cast<unsigned>(unit.op),
             kControlBytes);
  if (IsTagged(unit.op)) {
    writer.Put(unit.key.value, 4);
    writer.Put(unit.offset, 8);
  } else {
    writer.Put(0, 4);  // a key to invalidate
    writer.Put(static_cast<uint32_t>(QueueOf(unit.op)), 4);
    writer.Put(unit.message, 4);
    writer.Put(unit.message_offset, 4);
  }
  const size_t frame = FrameBytesOf(segment);
  const size_t end = frame - kCrcBytes;
  std::fill(to + kLengthBytes + segment, to + frame, std::byte{0});
  if (with_crc) {
    const auto crc = CrcOf({to, end});
    std::copy(crc.begin(), crc.end(), to + end);
  }
}

std::optional<size_t> FrameLength(std::span<const std::byte> bytes) {
  if (bytes.size() < kLengthBytes) {
    return std::nullopt;
  }
  return FrameBytesOf(BigEndianReader(bytes.data()).Get16());
}

std::variant<Unit, Error> Decode(std::span<const std::byte> frame, bool with_crc) {
  const size_t end = frame.size() - kCrcBytes;
  if (with_crc) {
    const auto crc = CrcOf(frame.first(end));
    if (!std::equal(crc.begin(), crc.end(), frame.begin() + static_cast<ptrdiff_t>(end))) {
      return kWrongCrc;
    }
  }
  BigEndianReader reader(frame.data());
  const size_t segment = reader.Get16();
  if (segment < kControlBytes) {
    return kUntaggedOfWrongVersion;
  }
  const uint16_t control = reader.Get16();
  const bool tagged = (control & kTagged) != 0;
  if ((control & kDdpVersionMask) != kDdpVersion) {
    return tagged ? kTaggedOfWrongVersion : kUntaggedOfWrongVersion;
  }
  if ((control & kRdmapVersionMask) != kRdmapVersion) {
    return kWrongRdmapVersion;
  }
  const unsigned opcode = control & kOpcodeMask;
  if (opcode > static_cast<unsigned>(Op::kTerminate)) {
    return kUnexpectedOpcode;
  }
  Unit unit;
  unit.op = static_cast<Op>(opcode);
  unit.last = (control & kLast) != 0;
  if (tagged != IsTagged(unit.op) || unit.op == Op::kSendInvalidate || unit.op == Op::kSendSolicitedInvalidate) {
    return kUnexpectedOpcode;
  }
  if (segment < HeaderBytes(unit.op)) {
    return kUnspecified;
  }
  if (tagged) {
    unit.key = {reader.Get32()};
    unit.offset = reader.Get64();
  } else {
    reader.Get32();
    if (reader.Get32() != static_cast<uint32_t>(QueueOf(unit.op))) {
      return kInvalidQueue;
    }
    unit.message = reader.Get32();
    unit.message_offset = reader.Get32();
  }
  unit.payload = frame.subspan(PayloadAt(unit.op), segment - HeaderBytes(unit.op));
  return unit;
}

void Encode(const ReadRequest& request, std::byte* to) {
  BigEndianWriter writer(to);
  writer.Put(request.sink.value, 4);
  writer.Put(request.sink_offset, 8);
  writer.Put(request.length, 4);
  writer.Put(request.source.value, 4);
  writer.Put(request.source_offset, 8);
}

std::optional<ReadRequest> DecodeReadRequest(std::span<const std::byte> payload) {
  if (payload.size() != kReadRequestBytes) {
    return std::nullopt;
  }
  BigEndianReader reader(payload.data());
  ReadRequest request;
  request.sink = {reader.Get32()};
  request.sink_offset = reader.Get64();
  request.length = reader.Get32();
  request.source = {reader.Get32()};
  request.source_offset = reader.Get64();
  return request;
}

void Encode(const Error& error, std::byte* to) {
  BigEndianWriter writer(to);
  writer.Put(static_cast<unsigned>(error.layer) << 4 | error.type, 1);
  writer.Put(error.code, 1);
  writer.Put(0, 2);  // no header is quoted
}

std::optional<Error> DecodeTerminate(std::span<const std::byte> payload) {
  if (payload.size() < kTerminateBytes) {
    return std::nullopt;
  }
  BigEndianReader reader(payload.data());
  const uint8_t first = reader.Get8();
  return Error{
      .layer = static_cast<Error::Layer>(first >> 4), .type = static_cast<uint8_t>(first & 0xf), .code = reader.Get8()};
}

}  // namespace termfs::driver::iwarp
