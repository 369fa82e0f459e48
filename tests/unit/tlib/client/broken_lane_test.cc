// SPDX-License-Identifier: Apache-2.0
//
// What breaks a queue pair ends its session, so that the client connects again: each message that a server must not
// send, on each kind of queue pair.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "base/mutex.h"
#include "tests/fakes/forging_nic.h"
#include "tests/unit/tlib/volume_fixture.h"

namespace termfs::tlib {
namespace {

using driver::WorkCompletion;

class Listener final : public client::CallbackHandler {
 public:
  Result<std::vector<std::byte>> HandleCallback(uint16_t, std::span<const std::byte>) override {
    return std::vector<std::byte>();
  }
  void SessionLost(const Status&) override { lost = true; }
  std::atomic<bool> lost{false};
};

class BrokenLane : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(volume_.Format().ok());
    ASSERT_TRUE(volume_.Start().ok());
    nic_ = std::make_unique<driver::ForgingNic>(driver::CreateSoftNic().value(), forgery_);
    auto session = client::Session::Connect(*nic_, volume_.path(), {}, &listener_);
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    session_ = std::move(session).value();
    auto channel = session_->OpenChannel({});
    ASSERT_TRUE(channel.ok());
    channel_ = std::move(channel).value();
    ASSERT_TRUE(Echo().ok());
  }
  void TearDown() override {
    channel_.reset();
    session_.reset();
  }

  Status Echo() {
    const auto body = BytesOf(7);
    return channel_->Call({.opcode = kEcho, .body = body, .in = {}, .out = {}}).status();
  }
  // With the next message changed so the call fails, as does every other until the client connects again.
  void ExpectLostBy(const driver::Forgery& change) {
    Change(change);
    EXPECT_EQ(Echo().code(), ENOTCONN);
    EXPECT_TRUE(Eventually([&] { return listener_.lost.load(); }));
    Change({});
    EXPECT_EQ(Echo().code(), ENOTCONN);
    EXPECT_EQ(session_->OpenChannel({}).status().code(), ENOTCONN);
    TestClient other;
    EXPECT_TRUE(other.Connect(volume_.path()).ok());
    other.channel.reset();
    other.session.reset();
  }

  TestVolume volume_{{.pages = 64, .dram_ratio = 0.5}};
  void Change(const driver::Forgery& change) {
    MutexLock lock(mutex_);
    change_ = change;
  }

  Mutex mutex_;
  driver::Forgery change_ GUARDED_BY(mutex_);
  driver::Forgery forgery_ = [this](WorkCompletion& completion, std::span<std::byte> bytes) {
    MutexLock lock(mutex_);
    if (change_) {
      change_(completion, bytes);
    }
  };
  Listener listener_;
  std::unique_ptr<driver::Nic> nic_;
  std::unique_ptr<client::Session> session_;
  std::unique_ptr<client::Channel> channel_;
};

TEST_F(BrokenLane, AReplyThatWasNotAskedFor) {
  ExpectLostBy([](WorkCompletion&, std::span<std::byte> bytes) {
    const uint64_t other = 0x123456789;
    std::memcpy(bytes.data() + offsetof(ReplyHeader, call), &other, sizeof(other));
  });
}

TEST_F(BrokenLane, AReplyThatIsTooShort) {
  ExpectLostBy([](WorkCompletion& completion, std::span<std::byte>) { completion.byte_len = 3; });
}

TEST_F(BrokenLane, AReplyWhoseLengthIsWrong) {
  ExpectLostBy([](WorkCompletion&, std::span<std::byte> bytes) {
    const uint32_t wrong = 4000;
    std::memcpy(bytes.data() + offsetof(ReplyHeader, body_bytes), &wrong, sizeof(wrong));
  });
}

TEST_F(BrokenLane, AWriteWithImmediate) {
  ExpectLostBy([](WorkCompletion& completion, std::span<std::byte>) { completion.has_imm = true; });
}

TEST_F(BrokenLane, AReceiveThatFails) {
  ExpectLostBy(
      [](WorkCompletion& completion, std::span<std::byte>) { completion.status = driver::WcStatus::kLocLenErr; });
}

// On the queue pair on which the server calls.
TEST_F(BrokenLane, ACallThatIsNone) {
  // The call comes before the reply.
  Change([](WorkCompletion& completion, std::span<std::byte>) { completion.byte_len = 3; });
  const auto body = BytesOf(7);
  EXPECT_EQ(channel_->Call({.opcode = kCallBack, .body = body, .in = {}, .out = {}}).status().code(), ENOTCONN);
  EXPECT_TRUE(Eventually([&] { return listener_.lost.load(); }));
  Change({});
  EXPECT_EQ(Echo().code(), ENOTCONN);
}

}  // namespace
}  // namespace termfs::tlib
