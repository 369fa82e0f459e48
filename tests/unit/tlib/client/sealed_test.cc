// SPDX-License-Identifier: Apache-2.0
//
// Over a wire that protects nothing messages are sealed, and bulk bytes have tags: what is forged there ends the
// session, and is never taken for what the other end said.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "base/mutex.h"
#include "tests/fakes/forging_nic.h"
#include "tests/unit/tlib/volume_fixture.h"
#include "tlib/rpc/secret.h"

namespace termfs::tlib {
namespace {

constexpr size_t kBulk = (size_t{1} << 20) - 77;

class CallbackEcho final : public client::CallbackHandler {
 public:
  Result<std::vector<std::byte>> HandleCallback(uint16_t, std::span<const std::byte> body) override {
    return std::vector<std::byte>(body.begin(), body.end());
  }
  void SessionLost(const Status&) override { lost = true; }
  std::atomic<bool> lost{false};
};

class SealedRpc : public ::testing::Test {
 protected:
  void Start(bool plain_allowed = false) {
    volume_.options().listen = place_;
    ASSERT_TRUE(MakeSecret(volume_.path() + "/secret").ok());
    volume_.options().tls = ServerTls(volume_.path() + "/secret").value();
    volume_.options().plain_data = plain_allowed;
    ASSERT_TRUE(volume_.Format().ok());
    const Status started = volume_.Start();
    ASSERT_TRUE(started.ok()) << started.ToString();
  }
  Status Connect(bool plain = false) {
    client::SessionOptions options{.bitmap = client::BitmapMode::kPulled, .wire = driver::Wire::kRoce};
    options.plain_data = plain;
    nic_ = std::make_unique<driver::ForgingNic>(driver::CreateSoftNic().value(), forgery_, posted_);
    ASSIGN_OR_RETURN(session_, client::Session::Connect(*nic_, ServerAddress(place_, volume_.path() + "/secret"),
                                                        options, &handler_));
    ASSIGN_OR_RETURN(channel_, session_->OpenChannel({}));
    return Status::Ok();
  }
  void TearDown() override {
    SetPosted({});
    SetForgery({});
    channel_.reset();
    session_.reset();
  }
  std::string Transport() {
    const auto sessions = volume_.server().Sessions();
    return sessions.empty() ? "none" : sessions.front().transport;
  }

  // Bytes go to the server and come back.
  Status EchoBulk(size_t bytes) {
    const auto in = channel_->buffer().first(bytes);
    const auto out = channel_->buffer().last(bytes);
    for (size_t i = 0; i < bytes; i++) {
      in[i] = static_cast<std::byte>(i * 13 + i / 4096);
    }
    std::memset(out.data(), 0, out.size());
    const std::vector<std::byte> sent(in.begin(), in.end());
    ASSIGN_OR_RETURN(const auto reply, channel_->Call({.opcode = kEcho, .body = BytesOf(3), .in = in, .out = out}));
    EXPECT_EQ(reply.out_bytes, bytes);
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), out.begin())) << bytes;
    return Status::Ok();
  }
  void ExpectSessionLost() {
    EXPECT_TRUE(Eventually([&] { return handler_.lost.load(); }));
    EXPECT_EQ(channel_->Call({.opcode = kEcho, .body = {}, .in = {}, .out = {}}).status().code(), ENOTCONN);
    EXPECT_TRUE(Eventually([&] { return volume_.service().closed == 1; }));
  }
  void SetForgery(const driver::Forgery& forgery) {
    MutexLock lock(mutex_);
    change_ = forgery;
  }
  void SetPosted(const driver::ForgeryOfPosted& posted) {
    MutexLock lock(mutex_);
    change_posted_ = posted;
  }

  TestVolume volume_{{.pages = 256, .dram_ratio = 0.25}};
  const HostPort place_{"127.0.0.1", FreePort()};
  Mutex mutex_;
  driver::Forgery change_ GUARDED_BY(mutex_);
  driver::ForgeryOfPosted change_posted_ GUARDED_BY(mutex_);
  driver::Forgery forgery_ = [this](driver::WorkCompletion& completion, std::span<std::byte> bytes) {
    MutexLock lock(mutex_);
    if (change_) {
      change_(completion, bytes);
    }
  };
  driver::ForgeryOfPosted posted_ = [this](std::span<const driver::SendWorkRequest> requests) {
    MutexLock lock(mutex_);
    if (change_posted_) {
      change_posted_(requests);
    }
  };
  CallbackEcho handler_;
  std::unique_ptr<driver::ForgingNic> nic_;
  std::unique_ptr<client::Session> session_;
  std::unique_ptr<client::Channel> channel_;
};

TEST_F(SealedRpc, CarriesCallsBulkBytesPagesAndCallbacks) {
  Start();
  ASSERT_TRUE(Connect().ok());
  EXPECT_NE(Transport().find("sealed RPCs"), std::string::npos) << Transport();
  for (const size_t bytes : {size_t{1}, size_t{100}, size_t{4096}, size_t{65536}, size_t{65537}, kBulk / 2}) {
    EXPECT_TRUE(EchoBulk(bytes).ok()) << bytes;
  }
  // More pages than have frames, so that some are absent.
  std::vector<std::byte> pages(200 * kPageSize);
  Random random(5);
  for (std::byte& byte : pages) {
    byte = static_cast<std::byte>(random());
  }
  std::memcpy(channel_->buffer().data(), pages.data(), pages.size());
  ASSERT_TRUE(channel_->Write({100}, channel_->buffer().first(pages.size())).ok());
  for (const size_t from : {size_t{0}, size_t{5000}, size_t{150} * kPageSize + 9}) {
    std::memset(channel_->buffer().data(), 0, pages.size());
    const client::ReadRequest read{.offset = {100 + from},
                                   .length = static_cast<uint32_t>(pages.size() - from),
                                   .destination = channel_->buffer().data()};
    ASSERT_TRUE(channel_->Read({&read, 1}).ok());
    EXPECT_EQ(std::memcmp(channel_->buffer().data(), pages.data() + from, pages.size() - from), 0) << from;
  }
  EXPECT_GT(MetricOf(session_->Metrics(), "rpc_read_pages_total"), 0U);
  const auto called = channel_->Call({.opcode = kCallBack, .body = BytesOf(9), .in = {}, .out = {}});
  ASSERT_TRUE(called.ok()) << called.status().ToString();
  EXPECT_EQ(std::memcmp(called->body.data(), BytesOf(9).data(), 4), 0);
}

TEST_F(SealedRpc, NotWhereBothEndsAskForNone) {
  Start(/*plain_allowed=*/true);
  ASSERT_TRUE(Connect(/*plain=*/true).ok());
  EXPECT_EQ(Transport().find("sealed RPCs"), std::string::npos) << Transport();
  EXPECT_TRUE(EchoBulk(kBulk / 2).ok());
}

TEST_F(SealedRpc, AreWhereOneEndAsksForNone) {
  Start();
  ASSERT_TRUE(Connect(/*plain=*/true).ok());
  EXPECT_NE(Transport().find("sealed RPCs"), std::string::npos) << Transport();
}

TEST_F(SealedRpc, AForgedReplyEndsTheSession) {
  Start();
  ASSERT_TRUE(Connect().ok());
  SetForgery([](driver::WorkCompletion&, std::span<std::byte> bytes) { bytes[3] ^= std::byte{1}; });
  EXPECT_EQ(EchoBulk(100).code(), ENOTCONN);
  ExpectSessionLost();
}

TEST_F(SealedRpc, AForgedRequestIsNotCarriedOutAndEndsTheSession) {
  Start();
  ASSERT_TRUE(Connect().ok());
  SetPosted([](std::span<const driver::SendWorkRequest> requests) {
    for (const auto& request : requests) {
      if (request.opcode == driver::Opcode::kSend && request.local.length != 0) {
        static_cast<std::byte*>(request.local.addr)[20] ^= std::byte{1};
      }
    }
  });
  EXPECT_FALSE(EchoBulk(100).ok());
  EXPECT_EQ(volume_.service().echoes, 0U);
  ExpectSessionLost();
}

TEST_F(SealedRpc, ForgedBytesToTheServerAreNotTaken) {
  Start();
  ASSERT_TRUE(Connect().ok());
  SetPosted([this](std::span<const driver::SendWorkRequest> requests) {
    if (requests.front().opcode == driver::Opcode::kSend) {
      channel_->buffer()[kBulk / 4] ^= std::byte{1};  // after the tags were made
    }
  });
  EXPECT_FALSE(EchoBulk(kBulk / 2).ok());
  EXPECT_EQ(volume_.service().echoes, 0U);
  ExpectSessionLost();
}

TEST_F(SealedRpc, ForgedBytesToTheClientAreNotTaken) {
  Start();
  ASSERT_TRUE(Connect().ok());
  // The channel's own memory, which no peer can write to, and the one where bytes arrive.
  std::vector<std::span<std::byte>> large;
  for (const auto memory : nic_->memories()) {
    if (memory.data() == channel_->buffer().data()) {
      large.clear();
    }
    if (memory.size() == channel_->buffer().size()) {
      large.push_back(memory);
    }
  }
  ASSERT_EQ(large.size(), 2U);
  const std::span<std::byte> arrivals = large[1];
  SetForgery([&](driver::WorkCompletion&, std::span<std::byte>) {  // the reply is there, and so are they
    arrivals[arrivals.size() - kBulk / 4] ^= std::byte{1};
  });
  EXPECT_EQ(EchoBulk(kBulk / 2).code(), ENOTCONN);
  ExpectSessionLost();
}

// Once they are taken over, no peer can change them.
TEST_F(SealedRpc, BytesThatWereTakenAreOutOfReach) {
  Start();
  ASSERT_TRUE(Connect().ok());
  ASSERT_TRUE(EchoBulk(kBulk / 2).ok());
  const std::vector<std::byte> before(channel_->buffer().begin(), channel_->buffer().end());
  for (const auto memory : nic_->memories()) {
    if (memory.size() == channel_->buffer().size() && memory.data() != channel_->buffer().data()) {
      std::memset(memory.data(), 0xff, memory.size());
    }
  }
  EXPECT_TRUE(std::equal(before.begin(), before.end(), channel_->buffer().begin()));
}

}  // namespace
}  // namespace termfs::tlib
