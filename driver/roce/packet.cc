// SPDX-License-Identifier: Apache-2.0
#include "driver/roce/packet.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <cstring>

#include "driver/big_endian.h"
#include "driver/checksum.h"

namespace termfs::driver::roce {
namespace {

constexpr size_t kBaseBytes = kLeastPacketBytes;
constexpr size_t kRethBytes = 16;
constexpr size_t kAtomicBytes = 28;
constexpr size_t kAethBytes = 4;
constexpr size_t kAtomicAckBytes = 8;
constexpr size_t kImmBytes = 4;
constexpr std::byte kOnes{0xff};

enum Header : uint8_t { kNone = 0, kReth = 1, kAtomicEth = 2, kAeth = 4, kAtomicAckEth = 8, kImm = 16 };

// By opcode.
constexpr std::array<uint8_t, kOps> kHeaders = {
    kNone,      kNone,
    kNone,      kImm,
    kNone,      kImm,  // SEND
    kReth,      kNone,
    kNone,      kImm,
    kReth,      kReth | kImm,  // WRITE
    kReth,      kAeth,
    kNone,      kAeth,
    kAeth,  // READ request, responses
    kAeth,      kAeth | kAtomicAckEth,
    kAtomicEth, kAtomicEth,  // acknowledges, atomics
};

uint8_t Headers(Op op) { return kHeaders[static_cast<size_t>(op)]; }

bool MayHavePayload(Op op) {
  return op != Op::kReadRequest && op != Op::kAcknowledge && op != Op::kAtomicAcknowledge && !IsAtomic(op);
}

// Of the bytes of `pieces`, one behind the other, as Ethernet's.
template <typename... Pieces>
InvariantCrc CrcOf(const Pieces&... pieces) {
  uint32_t crc = 0;
  ((crc = crc32_gzip_refl(crc, reinterpret_cast<const unsigned char*>(pieces.data()), pieces.size())), ...);
  LeaveVectorRegisters();
  InvariantCrc bytes;
  std::memcpy(bytes.data(), &crc, sizeof(crc));  // the least significant byte goes first
  return bytes;
}

}  // namespace

size_t HeaderBytes(Op op) {
  const uint8_t headers = Headers(op);
  return kBaseBytes + ((headers & kReth) != 0 ? kRethBytes : 0) + ((headers & kAtomicEth) != 0 ? kAtomicBytes : 0) +
         ((headers & kAeth) != 0 ? kAethBytes : 0) + ((headers & kAtomicAckEth) != 0 ? kAtomicAckBytes : 0) +
         ((headers & kImm) != 0 ? kImmBytes : 0);
}

void EncodeHeaders(const Packet& packet, std::byte* to) {
  const size_t pad = PadBytes(packet.payload.size());
  const uint8_t headers = Headers(packet.op);
  BigEndianWriter out(to);
  out.Put(static_cast<uint8_t>(packet.op), 1);
  out.Put((packet.solicited ? 0x80U : 0U) | 0x40U | pad << 4, 1);  // path migrated; header version 0
  out.Put(packet.partition, 2);
  out.Put(packet.queue_pair & kSequenceMask, 4);
  out.Put((packet.wants_ack ? 1U << 31 : 0U) | (packet.attempt & 0x7fU) << 24 | (packet.sequence & kSequenceMask), 4);
  if ((headers & kReth) != 0) {
    out.Put(packet.address, 8);
    out.Put(packet.rkey, 4);
    out.Put(packet.length, 4);
  }
  if ((headers & kAtomicEth) != 0) {
    out.Put(packet.address, 8);
    out.Put(packet.rkey, 4);
    out.Put(packet.swap_or_add, 8);
    out.Put(packet.compare, 8);
  }
  if ((headers & kAeth) != 0) {
    out.Put(static_cast<uint64_t>(packet.ack.kind) << 5 | (packet.ack.value & 31U), 1);
    out.Put(packet.ack.message & kSequenceMask, 3);
  }
  if ((headers & kAtomicAckEth) != 0) {
    out.Put(packet.original, 8);
  }
  if ((headers & kImm) != 0) {
    out.Put(packet.imm, 4);
  }
  std::fill_n(to + HeaderBytes(packet.op) + packet.payload.size(), pad, std::byte{0});
}

std::optional<Packet> Decode(std::span<const std::byte> bytes) {
  if (bytes.size() < kBaseBytes || std::to_integer<uint8_t>(bytes[0]) >= kOps) {
    return std::nullopt;
  }
  Packet packet;
  BigEndianReader in(bytes.data());
  packet.op = static_cast<Op>(in.Get(1));
  const uint64_t flags = in.Get(1);
  const size_t pad = flags >> 4 & 3;
  const size_t header = HeaderBytes(packet.op);
  if ((flags & 15) != 0 || bytes.size() < header + pad) {  // another version of the header
    return std::nullopt;
  }
  packet.solicited = (flags & 0x80) != 0;
  packet.partition = in.Get16();
  packet.queue_pair = in.Get32() & kSequenceMask;
  const uint32_t sequence = in.Get32();
  packet.wants_ack = (sequence & 1U << 31) != 0;
  packet.attempt = static_cast<uint8_t>(sequence >> 24 & 0x7f);
  packet.sequence = sequence & kSequenceMask;
  const uint8_t headers = Headers(packet.op);
  if ((headers & (kReth | kAtomicEth)) != 0) {
    packet.address = in.Get64();
    packet.rkey = in.Get32();
  }
  if ((headers & kReth) != 0) {
    packet.length = in.Get32();
  }
  if ((headers & kAtomicEth) != 0) {
    packet.swap_or_add = in.Get64();
    packet.compare = in.Get64();
  }
  if ((headers & kAeth) != 0) {
    const uint64_t syndrome = in.Get(1);
    packet.ack = {.kind = static_cast<AckKind>(syndrome >> 5 & 3),
                  .value = static_cast<uint8_t>(syndrome & 31),
                  .message = static_cast<uint32_t>(in.Get(3))};
  }
  if ((headers & kAtomicAckEth) != 0) {
    packet.original = in.Get64();
  }
  if ((headers & kImm) != 0) {
    packet.imm = in.Get32();
  }
  packet.payload = bytes.subspan(header, bytes.size() - header - pad);
  if ((bytes.size() - header) % 4 != 0 || (!packet.payload.empty() && !MayHavePayload(packet.op))) {
    return std::nullopt;
  }
  return packet;
}

InvariantCrc InvariantCrcOf4(std::span<const std::byte, 20> ip, std::span<const std::byte, 8> udp,
                             std::span<const std::byte> transport) {
  // Eight ones stand for the local route header that there is none of.
  std::array<std::byte, 8 + 20 + 8 + kBaseBytes> masked;
  masked.fill(kOnes);
  std::byte* const header = masked.data() + 8;
  std::copy(ip.begin(), ip.end(), header);
  header[1] = header[8] = header[10] = header[11] = kOnes;  // type of service, time to live, checksum
  std::byte* const datagram = header + ip.size();
  std::copy(udp.begin(), udp.end(), datagram);
  datagram[6] = datagram[7] = kOnes;  // checksum
  std::copy_n(transport.begin(), kBaseBytes, datagram + udp.size());
  datagram[udp.size() + 4] = kOnes;  // congestion bits
  return CrcOf(masked, transport.subspan(kBaseBytes));
}

InvariantCrc InvariantCrcOf6(std::span<const std::byte, 40> ip, std::span<const std::byte, 8> udp,
                             std::span<const std::byte> transport) {
  std::array<std::byte, 8 + 40 + 8 + kBaseBytes> masked;
  masked.fill(kOnes);
  std::byte* const header = masked.data() + 8;
  std::copy(ip.begin(), ip.end(), header);
  header[0] |= std::byte{0x0f};  // traffic class and flow label, hop limit
  header[1] = header[2] = header[3] = header[7] = kOnes;
  std::byte* const datagram = header + ip.size();
  std::copy(udp.begin(), udp.end(), datagram);
  datagram[6] = datagram[7] = kOnes;
  std::copy_n(transport.begin(), kBaseBytes, datagram + udp.size());
  datagram[udp.size() + 4] = kOnes;
  return CrcOf(masked, transport.subspan(kBaseBytes));
}

}  // namespace termfs::driver::roce
