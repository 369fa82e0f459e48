// SPDX-License-Identifier: Apache-2.0
//
// Calls that are given up: what ends them, and that nothing of them shows up later.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "base/interruption.h"
#include "tests/unit/tlib/volume_fixture.h"

namespace termfs::tlib {
namespace {

using client::CallRequest;

class InterruptTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(volume_.Format().ok());
    ASSERT_TRUE(volume_.Start().ok());
    auto made = Interruption::Create();
    ASSERT_TRUE(made.ok());
    interruption_ = std::move(made).value();
    const Status connected = client_.Connect(volume_.path());
    ASSERT_TRUE(connected.ok()) << connected.ToString();
    auto channel = client_.session->OpenChannel({.interruption = interruption_.get()});
    ASSERT_TRUE(channel.ok());
    client_.channel = std::move(channel).value();
  }
  void TearDown() override {
    volume_.service().withheld = false;
    client_.channel.reset();
    client_.session.reset();
  }

  // As operation `number`, interrupted once the server has it.
  Status CallInterrupted(uint64_t number, const CallRequest& request) {
    interruption_->Begin(number);
    std::thread other([&] {
      EXPECT_TRUE(Eventually([&] { return volume_.service().withholding == 1; }));
      EXPECT_TRUE(interruption_->Interrupt(number));
    });
    const auto reply = client_.channel->Call(request);
    other.join();
    interruption_->End();
    return reply.status();
  }
  Result<client::CallReply> Echo(uint32_t value) {
    return client_.channel->Call({.opcode = kEcho, .body = BytesOf(value), .in = {}, .out = {}});
  }

  TestVolume volume_{{.pages = 1024, .dram_ratio = 0.5}};
  TestClient client_;
  std::unique_ptr<Interruption> interruption_;
};

TEST_F(InterruptTest, Call_Interrupted_TheChannelGoesOnAtOnce) {
  EXPECT_EQ(CallInterrupted(1, {.opcode = kWithhold, .body = {}, .in = {}, .out = {}}).code(), EINTR);
  interruption_->Begin(2);
  EXPECT_FALSE(interruption_->Interrupt(1)) << "too late";
  const auto reply = Echo(42);
  ASSERT_TRUE(reply.ok()) << reply.status().ToString();
  EXPECT_TRUE(std::ranges::equal(reply->body, BytesOf(42)));
  EXPECT_EQ(volume_.service().withholding, 1) << "the server has not answered the first";
}

TEST_F(InterruptTest, Call_Interrupted_LateWriteLandsNowhere) {
  const std::span<std::byte> before = client_.channel->buffer();
  EXPECT_EQ(CallInterrupted(1, {.opcode = kWithhold, .body = {}, .in = {}, .out = before.first(kPageSize)}).code(),
            EINTR);
  const std::span<std::byte> after = client_.channel->buffer();
  std::fill_n(after.begin(), kPageSize, std::byte{0x11});
  std::optional<Status> late;
  client_.channel->AfterGivenUp([&](const Result<std::span<const std::byte>>& reply) { late = reply.status(); });
  volume_.service().withheld = false;
  ASSERT_TRUE(Eventually([&] { return Echo(1).ok() && late.has_value(); }));
  EXPECT_TRUE(late->ok()) << late->ToString();
  EXPECT_EQ(client_.channel->buffer().data(), after.data());
  EXPECT_TRUE(std::all_of(after.begin(), after.begin() + kPageSize, [](std::byte b) { return b == std::byte{0x11}; }));
}

TEST_F(InterruptTest, Call_InterruptedTwice_EachLateReplyFindsItsOwn) {
  for (uint64_t number : {1, 2}) {
    volume_.service().withholding = 0;  // of the one before, which stays withheld
    std::span<std::byte> out = client_.channel->buffer().first(kPageSize);
    EXPECT_EQ(CallInterrupted(number, {.opcode = kWithhold, .body = {}, .in = {}, .out = out}).code(), EINTR);
  }
  int answered = 0;
  client_.channel->AfterGivenUp([&](const auto& reply) { answered += reply.ok() ? 1 : 100; });
  client_.channel->AfterGivenUp([&](const auto& reply) { answered += reply.ok() ? 1000 : 10; });  // nothing is left
  EXPECT_EQ(answered, 10);
  volume_.service().withheld = false;
  ASSERT_TRUE(Eventually([&] { return Echo(1).ok() && answered == 11; }));
}

TEST_F(InterruptTest, Call_BeforeItWaits_EndsAtTheFirstWait) {
  interruption_->Begin(1);
  ASSERT_TRUE(interruption_->Interrupt(1));
  EXPECT_EQ(client_.channel->Call({.opcode = kWithhold, .body = {}, .in = {}, .out = {}}).status().code(), EINTR);
  interruption_->End();
  EXPECT_TRUE(Echo(1).ok());
}

TEST_F(InterruptTest, Call_WithoutCredit_IsInterruptedToo) {
  for (uint32_t i = 0; i < kChannelCredits; i++) {
    EXPECT_TRUE(client_.channel->Post({.opcode = kWithhold, .body = {}, .in = {}, .out = {}}).ok());
  }
  EXPECT_EQ(client_.channel->Post({.opcode = kWithhold, .body = {}, .in = {}, .out = {}}).code(), EAGAIN);
  interruption_->Begin(1);
  ASSERT_TRUE(interruption_->Interrupt(1));
  EXPECT_EQ(Echo(1).status().code(), EINTR);
  interruption_->End();
  bool told = false;
  client_.channel->AfterGivenUp([&](const auto& reply) { told = reply.status().code() == ENOTCONN; });
  EXPECT_TRUE(told) << "nothing was sent, so nothing will be answered";
  volume_.service().withheld = false;
  EXPECT_TRUE(Echo(2).ok());
}

TEST_F(InterruptTest, Abandon_EndsWaitsOfEveryChannel) {
  std::thread other([&] {
    EXPECT_TRUE(Eventually([&] { return volume_.service().withholding == 1; }));
    client_.session->Abandon(Status::Error(ENOTCONN, "as the test wants it"));
  });
  EXPECT_EQ(client_.channel->Call({.opcode = kWithhold, .body = {}, .in = {}, .out = {}}).status().code(), ENOTCONN);
  other.join();
  EXPECT_FALSE(client_.channel->unsent()) << "the server has it";
  EXPECT_EQ(Echo(1).status().code(), ENOTCONN);
  EXPECT_TRUE(client_.channel->unsent());
}

TEST_F(InterruptTest, Detach_TellsTheAnswersThatHadCome) {
  std::optional<Status> late;
  EXPECT_TRUE(client_.channel
                  ->Post({.opcode = kEcho, .body = {}, .in = {}, .out = {}},
                         [&](const Result<std::span<const std::byte>>& reply) { late = reply.status(); })
                  .ok());
  ASSERT_TRUE(Eventually([&] { return volume_.service().echoes == 1; }));
  volume_.Stop();
  EXPECT_FALSE(late.has_value()) << "nobody has looked";
  client_.channel->Detach();
  ASSERT_TRUE(late.has_value());
  EXPECT_TRUE(late->ok()) << late->ToString();
}

// Whoever made the last call may be reading its reply.
TEST_F(InterruptTest, Detach_KeepsTheLastReply) {
  const auto reply = Echo(42);
  ASSERT_TRUE(reply.ok()) << reply.status().ToString();
  client_.session->Abandon(Status::Error(ENOTCONN, "as the test wants it"));
  client_.channel->Detach();
  client_.channel->Detach();
  // If it was given back it is one of these now.
  const std::vector<std::vector<std::byte>> others(
      8, std::vector<std::byte>(2 * size_t{kChannelCredits} * kMaxMessage, std::byte{0xaa}));
  EXPECT_TRUE(std::ranges::equal(reply->body, BytesOf(42)));
}

TEST_F(InterruptTest, Detach_AnswersAsTheLostSessionAndKeepsTheBuffer) {
  EXPECT_EQ(CallInterrupted(1, {.opcode = kWithhold, .body = {}, .in = {}, .out = {}}).code(), EINTR);
  int told = 0;
  const auto count = [&told](const auto& reply) { told += reply.status().code() == ENOTCONN ? 1 : 0; };
  client_.channel->AfterGivenUp(count);
  client_.session->Abandon(Status::Error(ENOTCONN, "as the test wants it"));
  const std::span<std::byte> buffer = client_.channel->buffer();
  std::fill(buffer.begin(), buffer.end(), std::byte{7});
  client_.channel->Detach();
  EXPECT_EQ(told, 1) << "no answer can come any more";
  EXPECT_EQ(client_.channel->buffer().data(), buffer.data());
  EXPECT_EQ(buffer.back(), std::byte{7});
  EXPECT_EQ(Echo(1).status().code(), ENOTCONN);
  EXPECT_TRUE(client_.channel->unsent());
  EXPECT_EQ(client_.channel->Post({.opcode = kEcho, .body = {}, .in = {}, .out = {}}).code(), ENOTCONN);
  const client::ReadRequest read{.offset = {0}, .length = 64, .destination = buffer.data()};
  EXPECT_EQ(client_.channel->Read({&read, 1}).code(), ENOTCONN);
  EXPECT_EQ(client_.channel->Write({0}, buffer.first(64)).code(), ENOTCONN);
  client_.channel->AfterGivenUp(count);
  EXPECT_EQ(told, 2);
}

}  // namespace
}  // namespace termfs::tlib
