// SPDX-License-Identifier: Apache-2.0
#include "driver/iwarp/unit.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "driver/checksum.h"

namespace termfs::driver::iwarp {
namespace {

std::vector<std::byte> FrameOf(Unit unit, std::string_view payload, bool with_crc) {
  std::vector<std::byte> frame(FrameBytes(unit.op, payload.size()));
  std::memcpy(frame.data() + PayloadAt(unit.op), payload.data(), payload.size());
  unit.payload = std::span(frame).subspan(PayloadAt(unit.op), payload.size());
  Seal(unit, with_crc, frame.data());
  return frame;
}

// Of the message that the control word, or what comes behind it, was changed in.
template <typename Change>
Error ErrorAfter(const Change& change, Op op = Op::kSend) {
  std::vector<std::byte> frame = FrameOf({.op = op}, "payload", false);
  change(frame);
  const auto decoded = Decode(frame, false);
  const Error* const error = std::get_if<Error>(&decoded);
  EXPECT_NE(error, nullptr);
  return error != nullptr ? *error : Error{};
}

TEST(Checksum, Crc32c_OfAKnownText) {
  constexpr std::string_view kText = "123456789";
  EXPECT_EQ(Crc32c(std::as_bytes(std::span(kText))), 0xe3069283U);
}

TEST(Unit, Tagged_ComesBack) {
  Unit unit{.op = Op::kWrite, .last = false};
  unit.key = {0x01020304};
  unit.offset = 0x1122334455667788;
  const auto frame = FrameOf(unit, "twelve bytes", true);
  EXPECT_EQ(frame.size() % 4, 0U);
  EXPECT_EQ(FrameLength(frame), frame.size());
  const auto decoded = Decode(frame, true);
  const Unit* const back = std::get_if<Unit>(&decoded);
  ASSERT_NE(back, nullptr);
  EXPECT_EQ(back->op, Op::kWrite);
  EXPECT_FALSE(back->last);
  EXPECT_EQ(back->key, unit.key);
  EXPECT_EQ(back->offset, unit.offset);
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(back->payload.data()), back->payload.size()),
            "twelve bytes");
}

TEST(Unit, Untagged_ComesBack) {
  Unit unit{.op = Op::kSend};
  unit.message = 7;
  unit.message_offset = 9000;
  const auto frame = FrameOf(unit, "a", false);
  const auto decoded = Decode(frame, false);
  const Unit* const back = std::get_if<Unit>(&decoded);
  ASSERT_NE(back, nullptr);
  EXPECT_EQ(back->op, Op::kSend);
  EXPECT_TRUE(back->last);
  EXPECT_EQ(back->message, 7U);
  EXPECT_EQ(back->message_offset, 9000U);
  EXPECT_EQ(back->payload.size(), 1U);
}

// As RFC 5041 and 5040 draw it: T, L, DDP version 1; RDMAP version 1, opcode.
TEST(Unit, Header_IsTheStandards) {
  const auto write = FrameOf({.op = Op::kWrite}, "", false);
  EXPECT_EQ(write[2], std::byte{0xc1});
  EXPECT_EQ(write[3], std::byte{0x40});
  const auto read = FrameOf({.op = Op::kReadRequest}, "", false);
  EXPECT_EQ(read[2], std::byte{0x41});
  EXPECT_EQ(read[3], std::byte{0x41});
  EXPECT_EQ(read[11], std::byte{1});  // queue 1
}

TEST(Unit, Decode_OfAWrongBit_FindsTheCrcWrong) {
  const auto frame = FrameOf({.op = Op::kSend}, "some payload", true);
  for (size_t bit = 8 * kLengthBytes; bit < 8 * frame.size(); bit++) {
    auto damaged = frame;
    damaged[bit / 8] ^= std::byte(1U << bit % 8);
    const auto decoded = Decode(damaged, true);
    ASSERT_NE(std::get_if<Error>(&decoded), nullptr) << "bit " << bit;
    EXPECT_EQ(std::get<Error>(decoded), kWrongCrc);
  }
}

TEST(Unit, Decode_OfWhatIsNoUnit_SaysWhy) {
  using Frame = std::vector<std::byte>;
  EXPECT_EQ(ErrorAfter([](Frame& frame) { frame[2] ^= std::byte{0x03}; }), kUntaggedOfWrongVersion);
  EXPECT_EQ(ErrorAfter([](Frame& frame) { frame[2] ^= std::byte{0x03}; }, Op::kWrite), kTaggedOfWrongVersion);
  EXPECT_EQ(ErrorAfter([](Frame& frame) { frame[3] ^= std::byte{0xc0}; }), kWrongRdmapVersion);
  EXPECT_EQ(ErrorAfter([](Frame& frame) { frame[3] |= std::byte{0x0f}; }), kUnexpectedOpcode);
  EXPECT_EQ(ErrorAfter([](Frame& frame) { frame[2] ^= std::byte{0x80}; }), kUnexpectedOpcode);  // a tagged SEND
  EXPECT_EQ(ErrorAfter([](Frame& frame) { frame[3] = std::byte{0x44}; }), kUnexpectedOpcode);   // it invalidates
  EXPECT_EQ(ErrorAfter([](Frame& frame) { frame[11] = std::byte{1}; }), kInvalidQueue);
}

TEST(Unit, Decode_OfEveryShortLength_IsRefused) {
  for (const Op op : {Op::kSend, Op::kWrite, Op::kReadRequest, Op::kReadResponse, Op::kTerminate}) {
    const auto whole = FrameOf({.op = op}, "", false);
    for (size_t segment = 0; segment < HeaderBytes(op); segment++) {
      std::vector<std::byte> frame(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(FrameBytesOf(segment)));
      frame[0] = std::byte{0};
      frame[1] = static_cast<std::byte>(segment);
      ASSERT_EQ(FrameLength(frame), frame.size());
      const auto decoded = Decode(frame, false);
      EXPECT_NE(std::get_if<Error>(&decoded), nullptr) << segment << " bytes";
    }
  }
}

TEST(Unit, ReadRequest_ComesBack) {
  const ReadRequest request{
      .sink = {5}, .sink_offset = 1ULL << 40, .length = 4096, .source = {9}, .source_offset = 1ULL << 41};
  std::array<std::byte, kReadRequestBytes> bytes{};
  Encode(request, bytes.data());
  const auto back = DecodeReadRequest(bytes);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->sink, request.sink);
  EXPECT_EQ(back->sink_offset, request.sink_offset);
  EXPECT_EQ(back->length, request.length);
  EXPECT_EQ(back->source, request.source);
  EXPECT_EQ(back->source_offset, request.source_offset);
  EXPECT_FALSE(DecodeReadRequest(std::span(bytes).first(kReadRequestBytes - 1)).has_value());
}

TEST(Unit, Terminate_ComesBack) {
  std::array<std::byte, kTerminateBytes> bytes{};
  Encode(kMessageTooLong, bytes.data());
  EXPECT_EQ(DecodeTerminate(bytes), kMessageTooLong);
  EXPECT_FALSE(DecodeTerminate(std::span(bytes).first(3)).has_value());
}

}  // namespace
}  // namespace termfs::driver::iwarp
