// SPDX-License-Identifier: Apache-2.0
#include "driver/roce/packet.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/random.h"

namespace termfs::driver::roce {
namespace {

using Bytes = std::vector<std::byte>;

Bytes Encode(const Packet& packet) {
  const size_t header = HeaderBytes(packet.op);
  Bytes bytes(PacketBytes(header, packet.payload.size()), std::byte{0xee});
  EncodeHeaders(packet, bytes.data());
  std::copy(packet.payload.begin(), packet.payload.end(), bytes.begin() + static_cast<ptrdiff_t>(header));
  return bytes;
}

Bytes FromHex(const std::string& hex) {
  Bytes bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string ToHex(std::span<const std::byte> bytes) {
  std::string hex;
  for (const std::byte byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", std::to_integer<unsigned>(byte));
    hex += digits;
  }
  return hex;
}

bool HasPayload(Op op) {
  return op != Op::kReadRequest && op != Op::kAcknowledge && op != Op::kAtomicAcknowledge && !IsAtomic(op);
}

TEST(RocePacket, EveryOpcodeComesBackAsItWas) {
  Random random(3);
  for (uint8_t op = 0; op < kOps; op++) {
    for (size_t size : {0, 1, 2, 3, 4, 1023, 4096}) {
      Packet packet;
      packet.op = static_cast<Op>(op);
      if (!HasPayload(packet.op) && size != 0) {
        continue;
      }
      Bytes payload(size, std::byte{0x5a});
      packet.payload = payload;
      packet.solicited = random.Below(2) != 0;
      packet.wants_ack = random.Below(2) != 0;
      packet.partition = static_cast<uint16_t>(random());
      packet.queue_pair = static_cast<uint32_t>(random()) & kSequenceMask;
      packet.sequence = static_cast<uint32_t>(random()) & kSequenceMask;
      packet.attempt = static_cast<uint8_t>(random.Below(128));
      packet.address = random();
      packet.rkey = static_cast<uint32_t>(random());
      packet.length = static_cast<uint32_t>(random());
      packet.swap_or_add = random();
      packet.compare = random();
      packet.ack = {.kind = AckKind::kNak, .value = 5, .message = 0xabcdef};
      packet.original = random();
      packet.imm = static_cast<uint32_t>(random());
      const Bytes bytes = Encode(packet);
      const auto back = Decode(bytes);
      ASSERT_TRUE(back.has_value()) << int{op};
      EXPECT_EQ(Encode(*back), bytes) << int{op};
      EXPECT_EQ(back->sequence, packet.sequence);
      EXPECT_EQ(back->attempt, packet.attempt);
      EXPECT_EQ(back->queue_pair, packet.queue_pair);
      EXPECT_EQ(back->wants_ack, packet.wants_ack);
      EXPECT_EQ(back->payload.size(), size);
    }
  }
}

// By the tables of the specification.
TEST(RocePacket, BytesAreWhereTheyBelong) {
  Packet read;
  read.op = Op::kReadRequest;
  read.wants_ack = true;
  read.queue_pair = 0x123456;
  read.sequence = 0xabcdef;
  read.address = 0x1122334455667788;
  read.rkey = 0x99aabbcc;
  read.length = 0x1000;
  EXPECT_EQ(ToHex(Encode(read)), "0c40ffff0012345680abcdef112233445566778899aabbcc00001000");

  Packet nak;
  nak.op = Op::kAcknowledge;
  nak.queue_pair = 2;
  nak.sequence = 3;
  nak.ack = {.kind = AckKind::kNak, .value = static_cast<uint8_t>(NakCode::kRemoteAccess), .message = 4};
  EXPECT_EQ(ToHex(Encode(nak)),
            "1140ffff00000002000000036200"
            "0004");

  const Bytes three(3, std::byte{0x77});
  Packet send;
  send.op = Op::kSendOnly;
  send.payload = three;
  EXPECT_EQ(ToHex(Encode(send)), "0450ffff000000000000000077777700");

  Packet swap;
  swap.op = Op::kCompareSwap;
  swap.address = 8;
  swap.rkey = 1;
  swap.swap_or_add = 2;
  swap.compare = 3;
  EXPECT_EQ(ToHex(Encode(swap)), "1340ffff000000000000000000000000000000080000000100000000000000020000000000000003");
}

TEST(RocePacket, WhatIsNoPacketIsRefused) {
  Random random(7);
  for (int round = 0; round < 20000; round++) {
    Bytes bytes(random.Below(64));
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(random());
    }
    const auto packet = Decode(bytes);
    if (packet.has_value()) {
      const size_t header = HeaderBytes(packet->op);
      ASSERT_LE(header + packet->payload.size(), bytes.size());
    }
  }
  Packet atomic;
  atomic.op = Op::kFetchAdd;
  const Bytes whole = Encode(atomic);
  for (size_t length = 0; length < whole.size(); length++) {
    EXPECT_FALSE(Decode(std::span(whole).first(length)).has_value()) << length;
  }
  Bytes longer = whole;
  longer.resize(whole.size() + 4);
  EXPECT_FALSE(Decode(longer).has_value()) << "a payload where none may be";
  Bytes other = whole;
  other[1] |= std::byte{1};
  EXPECT_FALSE(Decode(other).has_value()) << "a header of another version";
  other = whole;
  other[0] = std::byte{kOps};
  EXPECT_FALSE(Decode(other).has_value()) << "an opcode of another transport";
}

// A congestion notification that a ConnectX-4 Lx sent.
TEST(RocePacket, InvariantCrcIsThatOfAnRnic) {
  const Bytes ip = FromHex("45c2003c718c4000401191610a0011010a001201");
  const Bytes udp = FromHex("000012b700280000");
  const Bytes notification = FromHex("8100ffff4000011800000000" + std::string(32, '0'));
  EXPECT_EQ(
      ToHex(InvariantCrcOf4(std::span<const std::byte, 20>(ip), std::span<const std::byte, 8>(udp), notification)),
      "82fd002a");
}

TEST(RocePacket, InvariantCrcLeavesOutWhatRoutersChange) {
  const Bytes ip = FromHex(
      "45000044000040004011"
      "26a70a0000010a000002");
  const Bytes udp = FromHex("c00012b700300000");
  const Bytes read = FromHex("0c40ffff0012345680abcdef112233445566778899aabbcc00001000");
  const auto crc = InvariantCrcOf4(std::span<const std::byte, 20>(ip), std::span<const std::byte, 8>(udp), read);
  Bytes routed = ip;
  routed[1] = routed[8] = routed[10] = routed[11] = std::byte{0x21};
  Bytes marked = read;
  marked[4] = std::byte{0x80};
  EXPECT_EQ(InvariantCrcOf4(std::span<const std::byte, 20>(routed), std::span<const std::byte, 8>(udp), marked), crc);
  for (size_t i = 0; i < read.size(); i++) {
    Bytes changed = read;
    changed[i] ^= std::byte{4};
    EXPECT_EQ(InvariantCrcOf4(std::span<const std::byte, 20>(ip), std::span<const std::byte, 8>(udp), changed) == crc,
              i == 4)
        << i;
  }
  Bytes elsewhere = ip;
  elsewhere[19] ^= std::byte{1};
  EXPECT_NE(InvariantCrcOf4(std::span<const std::byte, 20>(elsewhere), std::span<const std::byte, 8>(udp), read), crc);
}

TEST(RocePacket, InvariantCrcOfVersionSix) {
  const Bytes ip = FromHex("6000000000281140fd000000000000000000000000000001fd000000000000000000000000000002");
  const Bytes udp = FromHex("c00012b700280000");
  const Bytes read = FromHex("0c40ffff0012345680abcdef112233445566778899aabbcc00001000");
  const auto crc_of = [&](const Bytes& header) {
    return InvariantCrcOf6(std::span<const std::byte, 40>(header), std::span<const std::byte, 8>(udp), read);
  };
  for (size_t i = 0; i < ip.size(); i++) {  // traffic class, flow label, hop limit do not count
    for (const uint8_t bit : {0x01, 0x80}) {
      Bytes changed = ip;
      changed[i] ^= std::byte{bit};
      EXPECT_EQ(crc_of(changed) == crc_of(ip), (i == 0 && bit == 0x01) || (i >= 1 && i <= 3) || i == 7) << i;
    }
  }
}

}  // namespace
}  // namespace termfs::driver::roce
