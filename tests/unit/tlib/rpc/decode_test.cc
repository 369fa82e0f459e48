// SPDX-License-Identifier: Apache-2.0
#include "tlib/rpc/decode.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/page.h"
#include "tlib/rpc/page_span.h"

namespace termfs::tlib {
namespace {

std::vector<std::byte> Message(const auto& header, std::span<const std::byte> body) {
  std::vector<std::byte> message(sizeof(header) + body.size());
  EXPECT_EQ(EncodeMessage(header, body, message.data()), message.size());
  return message;
}

std::vector<std::byte> ReadRequest(ReadBody body, std::vector<uint64_t> words, uint32_t out) {
  std::vector<std::byte> bytes(sizeof(body) + words.size() * 8);
  std::memcpy(bytes.data(), &body, sizeof(body));
  if (!words.empty()) {
    std::memcpy(bytes.data() + sizeof(body), words.data(), words.size() * 8);
  }
  return Message(RequestHeader{.call = 1,
                               .opcode = kRead,
                               .body_bytes = static_cast<uint32_t>(bytes.size()),
                               .in = {},
                               .out = {.offset = 0, .rkey = 1, .length = out}},
                 bytes);
}

Result<DecodedRead> Decode(const std::vector<std::byte>& message) {
  ASSIGN_OR_RETURN(const DecodedRequest request, DecodeRequest(message));
  return DecodeRead(request);
}

TEST(Decode, Request_RoundTrip) {
  const std::vector<std::byte> body(17, std::byte{5});
  const RequestHeader header{.call = 9,
                             .epoch = 8,
                             .opcode = 70,
                             .body_bytes = 17,
                             .in = {.offset = 1, .rkey = 2, .length = 3},
                             .out = {.offset = 4, .rkey = 5, .length = 6}};
  const auto message = Message(header, body);
  const auto request = DecodeRequest(message);
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(std::memcmp(&request->header, &header, sizeof(header)), 0);
  EXPECT_TRUE(std::equal(body.begin(), body.end(), request->body.begin(), request->body.end()));
}

TEST(Decode, Request_EveryCutIsRefused) {
  const auto message = Message(RequestHeader{.body_bytes = 4, .in = {}, .out = {}}, std::vector<std::byte>(4));
  for (size_t length = 0; length < message.size(); length++) {
    EXPECT_EQ(DecodeRequest(std::span(message).first(length)).status().code(), EPROTO) << length;
  }
}

TEST(Decode, Request_BringsBytesAlong) {
  std::vector<std::byte> message =
      Message(RequestHeader{.opcode = 70, .body_bytes = 3, .in = {.length = 2}, .out = {}}, std::vector<std::byte>(3));
  message.push_back(std::byte{8});
  message.push_back(std::byte{9});
  EXPECT_EQ(DecodeRequest(message).status().code(), EPROTO) << "bytes that nobody has announced";
  const uint16_t opcode = 70 | kInline;
  std::memcpy(message.data() + offsetof(RequestHeader, opcode), &opcode, sizeof(opcode));
  const auto request = DecodeRequest(message);
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->header.opcode, 70);
  EXPECT_EQ(request->body.size(), 3U);
  ASSERT_EQ(request->in.size(), 2U);
  EXPECT_EQ(request->in[1], std::byte{9});
  for (size_t length = 0; length < message.size(); length++) {
    EXPECT_EQ(DecodeRequest(std::span(message).first(length)).status().code(), EPROTO) << length;
  }
  for (const uint32_t lie : {uint32_t{1}, uint32_t{3}, kMaxInline + 1, UINT32_MAX}) {
    std::memcpy(message.data() + offsetof(RequestHeader, in) + offsetof(RemoteBuffer, length), &lie, sizeof(lie));
    EXPECT_EQ(DecodeRequest(message).status().code(), EPROTO) << lie;
  }
}

TEST(Decode, Request_BulkOutOfRangeIsRefused) {
  const RemoteBuffer large{.offset = 0, .rkey = 1, .length = kMaxTransfer + 1};
  const RemoteBuffer wrapping{.offset = UINT64_MAX, .rkey = 1, .length = 1};
  for (const RemoteBuffer& bad : {large, wrapping}) {
    EXPECT_EQ(DecodeRequest(Message(RequestHeader{.in = bad, .out = {}}, {})).status().code(), EPROTO);
    EXPECT_EQ(DecodeRequest(Message(RequestHeader{.in = {}, .out = bad}, {})).status().code(), EPROTO);
  }
}

TEST(Decode, Reply_ErrorsThatAreNoErrnoAreRefused) {
  for (const int32_t error : {-1, 4096, INT32_MIN}) {
    EXPECT_EQ(DecodeReply(Message(ReplyHeader{.error = error}, {})).status().code(), EPROTO);
  }
  EXPECT_TRUE(DecodeReply(Message(ReplyHeader{.error = ENOENT}, {})).ok());
  EXPECT_EQ(DecodeReply(Message(ReplyHeader{.out_bytes = kMaxTransfer + 1}, {})).status().code(), EPROTO);
}

TEST(Decode, Read_RoundTripOfTheLargestRange) {
  // Unaligned and as long as can be: one page more than its length divides into.
  std::vector<uint64_t> words(kMaxReadWords, ~uint64_t{0});
  words.back() = 1;  // page 1025
  const auto read =
      Decode(ReadRequest({.offset = 1, .length = kMaxTransfer, .words = kMaxReadWords}, words, kMaxTransfer));
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->words, kMaxReadWords);
  EXPECT_TRUE(std::equal(words.begin(), words.end(), read->missing.begin()));
}

TEST(Decode, Read_BitmapsThatDoNotFitAreRefused) {
  EXPECT_TRUE(Decode(ReadRequest({.offset = 0, .length = 4096, .words = 1}, {1}, 4096)).ok());
  EXPECT_EQ(Decode(ReadRequest({.offset = 0, .length = 4096, .words = 1}, {2}, 4096)).status().code(), EPROTO);
  EXPECT_EQ(Decode(ReadRequest({.offset = 0, .length = 4096, .words = 1}, {0}, 4096)).status().code(), EPROTO);
  EXPECT_EQ(Decode(ReadRequest({.offset = 0, .length = 4096, .words = 1}, {}, 4096)).status().code(), EPROTO);
  EXPECT_EQ(Decode(ReadRequest({.offset = 0, .length = 4096, .words = 1}, {1, 1}, 4096)).status().code(), EPROTO);
  EXPECT_EQ(Decode(ReadRequest({.offset = 0, .length = 4096, .words = UINT32_MAX}, {1}, 4096)).status().code(), EPROTO);
  EXPECT_EQ(Decode(ReadRequest({.offset = 0, .length = 4096, .words = 1}, {1}, 4095)).status().code(), EPROTO);
  EXPECT_EQ(Decode(ReadRequest({.offset = UINT64_MAX, .length = 2, .words = 1}, {1}, 2)).status().code(), EPROTO);
  EXPECT_TRUE(Decode(ReadRequest({.offset = 0, .length = 64 * 4096, .words = 1}, {~uint64_t{0}}, 64 * 4096)).ok());
}

TEST(Decode, Presence_NeedsExactlyTheWords) {
  ReadBitmap present{};
  const std::vector<std::byte> body(16);
  const auto message = Message(ReplyHeader{.body_bytes = 16}, body);
  const auto reply = DecodeReply(message);
  ASSERT_TRUE(reply.ok());
  EXPECT_TRUE(DecodePresence(*reply, 2, present).ok());
  EXPECT_EQ(DecodePresence(*reply, 1, present).code(), EPROTO);
  EXPECT_EQ(DecodePresence(*reply, 3, present).code(), EPROTO);
  EXPECT_EQ(DecodePresence(*reply, kMaxReadWords + 1, present).code(), EPROTO);
}

TEST(PageSpan, Part_CutsAtPagesAndEnds) {
  const PageSpan span(4096 + 100, 2 * 4096);
  EXPECT_EQ(span.first(), 1U);
  EXPECT_EQ(span.count(), 3U);
  EXPECT_EQ(span.part(0).offset, 0U);
  EXPECT_EQ(span.part(0).length, 3996U);
  EXPECT_EQ(span.part(1).offset, 3996U);
  EXPECT_EQ(span.part(1).length, 4096U);
  EXPECT_EQ(span.part(2).offset, 8092U);
  EXPECT_EQ(span.part(2).length, 100U);
  EXPECT_EQ(span.part(1, 2).length, 4196U);
  EXPECT_EQ(PageSpan(0, 1).count(), 1U);
  EXPECT_EQ(PageSpan(4095, 2).count(), 2U);
  EXPECT_EQ(PageSpan(0, 64 * 4096).words(), 1U);
  EXPECT_EQ(PageSpan(1, 64 * 4096).words(), 2U);
}

}  // namespace
}  // namespace termfs::tlib
