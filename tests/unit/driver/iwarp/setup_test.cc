// SPDX-License-Identifier: Apache-2.0
#include "driver/iwarp/setup.h"

#include <gtest/gtest.h>

#include <cstring>

namespace termfs::driver::iwarp {
namespace {

MpaSetUp ARequest() {
  MpaSetUp request;
  request.reads_in = 64;
  request.reads_out = 32;
  request.private_data = {std::byte{1}, std::byte{2}, std::byte{3}};
  return request;
}

TEST(MpaSetUp, Request_ComesBack) {
  const auto bytes = Encode(SetUpFrame::kRequest, ARequest());
  EXPECT_EQ(std::memcmp(bytes.data(), "MPA ID Req Frame", 16), 0);
  const auto decoded = DecodeSetUp(SetUpFrame::kRequest, bytes);
  ASSERT_TRUE(decoded.ok() && decoded.value().has_value());
  EXPECT_EQ(decoded.value()->bytes, bytes.size());
  const MpaSetUp& back = decoded.value()->set_up;
  EXPECT_TRUE(back.with_crc && back.peer_to_peer && back.ready_by_write);
  EXPECT_FALSE(back.with_markers || back.rejects);
  EXPECT_EQ(back.reads_in, 64);
  EXPECT_EQ(back.reads_out, 32);
  EXPECT_EQ(back.private_data, ARequest().private_data);
}

TEST(MpaSetUp, Decode_OfEachBeginning_WantsMore) {
  const auto bytes = Encode(SetUpFrame::kReply, ARequest());
  for (size_t length = 0; length < bytes.size(); length++) {
    const auto decoded = DecodeSetUp(SetUpFrame::kReply, std::span(bytes).first(length));
    ASSERT_TRUE(decoded.ok()) << length;
    EXPECT_FALSE(decoded.value().has_value()) << length;
  }
}

TEST(MpaSetUp, Decode_OfAnotherProtocol_IsRefusedAtItsFirstByte) {
  const std::byte other{'G'};
  EXPECT_EQ(DecodeSetUp(SetUpFrame::kRequest, {&other, 1}).status().code(), EPROTO);
  const auto request = Encode(SetUpFrame::kRequest, ARequest());
  EXPECT_EQ(DecodeSetUp(SetUpFrame::kReply, request).status().code(), EPROTO);
}

TEST(MpaSetUp, Decode_OfOtherRevisionsAndLengths_IsRefused) {
  const auto good = Encode(SetUpFrame::kRequest, ARequest());
  const auto after = [&](size_t at, uint8_t value) {
    auto bytes = good;
    bytes[at] = static_cast<std::byte>(value);
    bytes.resize(bytes.size() + 65536);
    return DecodeSetUp(SetUpFrame::kRequest, bytes).status().code();
  };
  EXPECT_EQ(after(17, 1), EPROTO);     // revision
  EXPECT_EQ(after(16, 0x40), EPROTO);  // not enhanced
  EXPECT_EQ(after(18, 0xff), EPROTO);  // too long
  EXPECT_EQ(after(19, 3), EPROTO);     // too short
  EXPECT_EQ(after(16, 0x50), 0);
}

TEST(MpaSetUp, Accept_TakesTheSmallerNumberOfReads) {
  const auto reply = Accept(ARequest(), 16, false);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply.value().reads_in, 16);
  EXPECT_EQ(reply.value().reads_out, 16);
  EXPECT_TRUE(reply.value().with_crc);  // the request asked for it
  EXPECT_TRUE(Check(ARequest(), reply.value()).ok());
}

// What the Linux kernel's siw sends: no CRC, not peer to peer, and no flag that says what the first unit is.
TEST(MpaSetUp, Accept_OfAClientThatIsNotPeerToPeer_RepliesWithTheSame) {
  MpaSetUp request = ARequest();
  request.with_crc = request.peer_to_peer = request.ready_by_write = false;
  const auto reply = Accept(request, 16, true);
  ASSERT_TRUE(reply.ok());
  EXPECT_TRUE(reply.value().with_crc);
  EXPECT_FALSE(reply.value().peer_to_peer || reply.value().ready_by_write);
  EXPECT_TRUE(Check(request, reply.value()).ok());
  EXPECT_EQ(Check(ARequest(), reply.value()).code(), EPROTO);
}

TEST(MpaSetUp, ReadsOut_AreThoseThatThePeerQueues) {
  MpaSetUp request = ARequest();
  MpaSetUp reply = Accept(request, 16, true).value();
  EXPECT_EQ(ReadsOut(request, reply), 16);
  reply.reads_in = 100;
  EXPECT_EQ(ReadsOut(request, reply), 32);
  request.reads_in = 2;
  EXPECT_EQ(ReadsOut(Accept(request, 16, true).value(), request), 2);
}

TEST(MpaSetUp, Accept_OfWhatItCannotDo_IsRefused) {
  const auto after = [](auto change) {
    MpaSetUp request = ARequest();
    change(request);
    return Accept(request, 16, true).status().code();
  };
  EXPECT_EQ(after([](MpaSetUp& request) { request.with_markers = true; }), EPROTO);
  EXPECT_EQ(after([](MpaSetUp& request) { request.ready_by_write = false; }), EPROTO);
  EXPECT_EQ(after([](MpaSetUp& request) { request.reads_in = 0; }), EPROTO);
}

TEST(MpaSetUp, Check_OfAReplyThatDoesNotFit_IsRefused) {
  const auto after = [](auto change) {
    MpaSetUp reply = Accept(ARequest(), 16, true).value();
    change(reply);
    return Check(ARequest(), reply).code();
  };
  EXPECT_EQ(after([](MpaSetUp& reply) { reply.rejects = true; }), ECONNREFUSED);
  EXPECT_EQ(after([](MpaSetUp& reply) { reply.with_markers = true; }), EPROTO);
  EXPECT_EQ(after([](MpaSetUp& reply) { reply.with_crc = false; }), EPROTO);
  EXPECT_EQ(after([](MpaSetUp& reply) { reply.reads_in = 0; }), EPROTO);
  EXPECT_EQ(after([](MpaSetUp& reply) { reply.reads_out = 65; }), EPROTO);
  EXPECT_EQ(after([](MpaSetUp& reply) { reply.peer_to_peer = false; }), EPROTO);
  EXPECT_EQ(after([](MpaSetUp& reply) { reply.ready_by_write = false; }), EPROTO);
}

}  // namespace
}  // namespace termfs::driver::iwarp
