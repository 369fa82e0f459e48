// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <future>
#include <mutex>

#include "tests/unit/tlib/server/server_fixture.h"

namespace termfs::tlib {
namespace {

using client::BitmapMode;
using client::CallReply;
using std::chrono::milliseconds;

TEST_F(ServerTest, Write_NotAllowedIsEPERM) {
  volume_.service().allow_writes = false;
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path()).ok());
  EXPECT_EQ(client.Write(0, RandomBytes(10, 1)).code(), EPERM);
}

TEST_F(ServerTest, Call_CarriesBodyAndBulk) {
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path()).ok());
  const auto buffer = client.channel->buffer();
  const auto bulk = RandomBytes(500'000, 3);
  std::memcpy(buffer.data(), bulk.data(), bulk.size());
  const auto body = RandomBytes(kMaxMessage - sizeof(RequestHeader), 4);
  const auto reply = client.channel->Call({.opcode = kEcho,
                                           .body = body,
                                           .in = buffer.first(bulk.size()),
                                           .out = buffer.subspan(bulk.size(), bulk.size())});
  ASSERT_TRUE(reply.ok()) << reply.status().ToString();
  EXPECT_TRUE(std::equal(body.begin(), body.end(), reply->body.begin(), reply->body.end()));
  EXPECT_EQ(reply->out_bytes, bulk.size());
  EXPECT_EQ(std::memcmp(buffer.data() + bulk.size(), bulk.data(), bulk.size()), 0);
}

TEST_F(ServerTest, Call_CarriesFewBytesToo) {
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path()).ok());
  const auto buffer = client.channel->buffer();
  for (const size_t size : {size_t{1}, size_t{kMaxInline} - 1, size_t{kMaxInline}, size_t{kMaxInline} + 1}) {
    for (const size_t body_size : {size_t{0}, size_t{100}, size_t{kMaxMessage} - sizeof(RequestHeader)}) {
      const auto bulk = RandomBytes(size, size);
      std::memcpy(buffer.data(), bulk.data(), size);
      const auto body = RandomBytes(body_size, 4);
      const auto reply = client.channel->Call(
          {.opcode = kEcho, .body = body, .in = buffer.first(size), .out = buffer.subspan(2 * kMaxInline, size)});
      ASSERT_TRUE(reply.ok()) << reply.status().ToString();
      EXPECT_TRUE(std::equal(body.begin(), body.end(), reply->body.begin(), reply->body.end()));
      EXPECT_EQ(std::memcmp(buffer.data() + 2 * kMaxInline, bulk.data(), size), 0) << size << " " << body_size;
    }
  }
}

TEST_F(ServerTest, Post_IsAnsweredLater) {
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path()).ok());
  const auto body = RandomBytes(100, 4);
  const auto bytes = RandomBytes(kMaxInline, 5);  // not in the channel's buffer
  int good = 0;
  int refused = 0;
  EXPECT_TRUE(client.channel
                  ->Post({.opcode = kEcho, .body = body, .in = {}, .out = {}},
                         [&](const auto& reply) { good += reply.ok() && std::ranges::equal(*reply, body) ? 1 : 0; })
                  .ok());
  EXPECT_TRUE(client.channel
                  ->Post({.opcode = kEcho, .body = body, .in = bytes, .out = {}},
                         [&](const auto& reply) { refused += reply.status().code() == ERANGE ? 1 : 0; })
                  .ok());
  EXPECT_EQ(good + refused, 0) << "nobody has looked yet";
  EXPECT_TRUE(client.channel->AwaitPosted().ok());
  EXPECT_EQ(good, 1);
  EXPECT_EQ(refused, 1) << "it has its bytes, and nowhere to put them";
  const auto more = RandomBytes(kMaxInline + 1, 5);
  EXPECT_EQ(client.channel->Post({.opcode = kEcho, .body = {}, .in = more, .out = {}}).code(), EINVAL);
}

TEST_F(ServerTest, Post_ThenTheClientEnds_ItIsCarriedOut) {
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path()).ok());
  volume_.service().withheld = false;
  const uint64_t echoes = volume_.service().echoes;
  for (uint32_t i = 0; i < kChannelCredits; ++i) {
    EXPECT_TRUE(client.channel->Post({.opcode = kEcho, .body = {}, .in = {}, .out = {}}).ok());
  }
  client.session->Abandon(Status::Error(ENOTCONN, "as the test wants it"));
  EXPECT_TRUE(Eventually([&] { return volume_.service().echoes == echoes + kChannelCredits; }));
}

TEST_F(ServerTest, Call_ErrorsArriveWithTheirText) {
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path()).ok());
  const auto failed = client.channel->Call({.opcode = kFail, .body = {}, .in = {}, .out = {}});
  EXPECT_EQ(failed.status().code(), EXDEV);
  EXPECT_EQ(failed.status().message(), "as asked");
  const auto buffer = client.channel->buffer();
  const auto no_room =
      client.channel->Call({.opcode = kEcho, .body = {}, .in = buffer.first(100), .out = buffer.subspan(100, 99)});
  EXPECT_EQ(no_room.status().code(), ERANGE);
  EXPECT_TRUE(client.channel->Call({.opcode = kEcho, .body = {}, .in = {}, .out = {}}).ok());
}

TEST_F(ServerTest, Call_TimesOutAndRetiresTheBuffer) {
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path()).ok());
  const std::byte* const before = client.channel->buffer().data();
  const auto late_without_bulk =
      client.channel->Call({.opcode = kWithhold, .body = {}, .in = {}, .out = {}, .timeout = milliseconds(10)});
  EXPECT_EQ(late_without_bulk.status().code(), ETIMEDOUT);
  EXPECT_EQ(client.channel->buffer().data(), before) << "the server does not reach into it";
  const auto late = client.channel->Call({.opcode = kWithhold,
                                          .body = {},
                                          .in = {},
                                          .out = client.channel->buffer().first(8),
                                          .timeout = milliseconds(10)});
  EXPECT_EQ(late.status().code(), ETIMEDOUT);
  EXPECT_NE(client.channel->buffer().data(), before);
  // The late replies are ignored, their credits come back, and the channel goes on.
  volume_.service().withheld = false;
  for (int i = 0; i < 100; i++) {
    ASSERT_TRUE(client.channel->Call({.opcode = kEcho, .body = {}, .in = {}, .out = {}}).ok());
  }
}

TEST_F(ServerTest, Call_WithoutCreditsTimesOut) {
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path()).ok());
  for (uint32_t i = 0; i < kChannelCredits; i++) {
    EXPECT_EQ(client.channel->Call({.opcode = kWithhold, .body = {}, .in = {}, .out = {}, .timeout = milliseconds(1)})
                  .status()
                  .code(),
              ETIMEDOUT);
  }
  EXPECT_EQ(client.channel->Call({.opcode = kEcho, .body = {}, .in = {}, .out = {}, .timeout = milliseconds(1)})
                .status()
                .code(),
            ETIMEDOUT);
  volume_.service().withheld = false;
  EXPECT_TRUE(client.channel->Call({.opcode = kEcho, .body = {}, .in = {}, .out = {}}).ok());  // when replies came
}

TEST_F(ServerTest, Call_BlockingOnesDoNotHoldUpOthers) {
  TestClient slow;
  TestClient quick;
  ASSERT_TRUE(slow.Connect(volume_.path()).ok());
  ASSERT_TRUE(quick.Connect(volume_.path()).ok());
  auto blocked = std::async(
      std::launch::async, [&] { return slow.channel->Call({.opcode = kBlock, .body = {}, .in = {}, .out = {}}).ok(); });
  ASSERT_TRUE(Eventually([&] { return volume_.service().withholding == 1; }));
  for (int i = 0; i < 20; i++) {
    EXPECT_TRUE(quick.channel->Call({.opcode = kEcho, .body = {}, .in = {}, .out = {}}).ok());
  }
  EXPECT_EQ(volume_.service().withholding, 1);
  volume_.service().withheld = false;
  EXPECT_TRUE(blocked.get());
}

class EchoHandler final : public client::CallbackHandler {
 public:
  Result<std::vector<std::byte>> HandleCallback(uint16_t opcode, std::span<const std::byte> body) override {
    calls++;
    std::unique_lock lock(hold);  // tests hold it to be slow
    if (opcode != kEcho) {
      return Status::Error(EDOM, "not echo");
    }
    return std::vector<std::byte>(body.begin(), body.end());
  }
  void SessionLost(const Status& why) override {
    EXPECT_EQ(why.code(), ENOTCONN);
    lost++;
  }
  std::atomic<int> calls{0};
  std::atomic<int> lost{0};
  std::mutex hold;
};

TEST_F(ServerTest, CallClient_ReachesTheHandler) {
  EchoHandler handler;
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path(), {}, &handler).ok());
  for (uint32_t i = 0; i < 300; i++) {
    const auto reply = client.channel->Call({.opcode = kCallBack, .body = BytesOf(i), .in = {}, .out = {}});
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
    ASSERT_TRUE(std::equal(reply->body.begin(), reply->body.end(), BytesOf(i).begin()));
  }
  EXPECT_EQ(handler.calls, 300);
}

TEST_F(ServerTest, CallClient_TimesOutAndGoesOn) {
  EchoHandler handler;
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path(), {}, &handler).ok());
  volume_.service().callback_timeout = 5;
  {
    std::unique_lock hold(handler.hold);
    for (int i = 0; i < 40; i++) {  // more than there are credits
      EXPECT_EQ(client.channel->Call({.opcode = kCallBack, .body = BytesOf(1), .in = {}, .out = {}}).status().code(),
                ETIMEDOUT);
    }
  }
  volume_.service().callback_timeout = 60'000;
  EXPECT_TRUE(client.channel->Call({.opcode = kCallBack, .body = BytesOf(1), .in = {}, .out = {}}).ok());
}

TEST_F(ServerTest, CallClient_WithoutHandlerOrSessionFails) {
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path()).ok());
  EXPECT_EQ(client.channel->Call({.opcode = kCallBack, .body = BytesOf(1), .in = {}, .out = {}}).status().code(),
            ENOSYS);
  Status none;
  ASSERT_TRUE(volume_.server()
                  .RunInCoroutine([&] {
                    none = volume_.server().CallClient({99}, kEcho, {}, milliseconds(100)).status();
                    return Status::Ok();
                  })
                  .ok());
  EXPECT_EQ(none.code(), ENOTCONN);
}

TEST_F(ServerTest, Admin_AnswersAndFails) {
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path()).ok());
  const auto body = RandomBytes(900'000, 5);
  const auto reply = client.session->Admin(2, body);
  ASSERT_TRUE(reply.ok()) << reply.status().ToString();
  EXPECT_EQ(*reply, body);
  EXPECT_EQ(client.session->Admin(1, {}).status().code(), EDOM);
}

TEST_F(ServerTest, Sessions_ComeAndGo) {
  {
    TestClient client;
    ASSERT_TRUE(client.Connect(volume_.path(), {.program = "tester"}).ok());
    const auto sessions = volume_.server().Sessions();
    ASSERT_EQ(sessions.size(), 1U);
    EXPECT_EQ(sessions[0].program, "tester");
    EXPECT_EQ(sessions[0].id.value, client.session->id());
    EXPECT_EQ(sessions[0].pid, static_cast<uint32_t>(getpid()));
    EXPECT_EQ(sessions[0].queue_pairs, 3U);  // the session's, the callbacks', the channel's
    client.channel.reset();
    EXPECT_TRUE(Eventually([&] { return volume_.server().Sessions()[0].queue_pairs == 2; }));
  }
  EXPECT_TRUE(Eventually([&] { return volume_.server().Sessions().empty(); }));
  EXPECT_TRUE(Eventually([&] { return volume_.service().closed == 1; }));
  EXPECT_EQ(volume_.service().opened, 1);
}

TEST_F(ServerTest, Expel_EndsTheSessionAndTellsTheClient) {
  EchoHandler handler;
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path(), {}, &handler).ok());
  // One that waits for a reply must wake up.
  auto asleep = std::async(std::launch::async, [&] {
    return client.channel->Call({.opcode = kWithhold, .body = {}, .in = {}, .out = {}}).status().code();
  });
  ASSERT_TRUE(Eventually([&] { return volume_.service().withholding == 1; }));
  volume_.server().Expel({client.session->id()}, "test");
  EXPECT_EQ(asleep.get(), ENOTCONN);
  volume_.service().withheld = false;
  EXPECT_TRUE(Eventually([&] { return client.session->lost(); }));
  std::vector<std::byte> page(kPageSize);
  EXPECT_EQ(client.Read(0, page).code(), ENOTCONN);
  EXPECT_EQ(client.session->Admin(2, {}).status().code(), ENOTCONN);
  EXPECT_EQ(client.session->OpenChannel({}).status().code(), ENOTCONN);
  EXPECT_TRUE(Eventually([&] { return handler.lost == 1; }));
  EXPECT_TRUE(Eventually([&] { return volume_.service().closed == 1; }));
  EXPECT_TRUE(volume_.server().Sessions().empty());
}

TEST_F(ServerTest, Stop_EndsSessionsWithRequestsInFlight) {
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path()).ok());
  auto waiting = std::async(std::launch::async, [&] {
    return client.channel->Call({.opcode = kWithhold, .body = {}, .in = {}, .out = {}}).status().code();
  });
  ASSERT_TRUE(Eventually([&] { return volume_.service().withholding == 1; }));
  auto stopped = std::async(std::launch::async, [&] { return volume_.server().Stop().ok(); });
  EXPECT_EQ(waiting.get(), ENOTCONN);
  volume_.service().withheld = false;
  EXPECT_TRUE(stopped.get());
  EXPECT_EQ(volume_.service().closed, 1);
}

TEST_F(ServerTest, Connect_StaleSocketIsReplaced) {
  volume_.Stop();
  // What a dead server leaves behind.
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = volume_.path() + "/socket";
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  const UniqueFd stale(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(stale.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  TestClient refused;
  EXPECT_EQ(refused.Connect(volume_.path()).code(), ECONNREFUSED);
  ASSERT_TRUE(volume_.Start().ok());
  TestClient client;
  EXPECT_TRUE(client.Connect(volume_.path()).ok());
  struct stat status {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0600U);
}

TEST_F(ServerTest, Connect_ThroughALongPath) {
  std::string deep = volume_.path();
  const std::string link_target = volume_.path();
  for (int i = 0; i < 4; i++) {
    deep += "/" + std::string(60, 'd');
    ASSERT_TRUE(std::filesystem::create_directory(deep));
  }
  std::filesystem::create_directory_symlink(link_target, deep + "/volume");
  TestClient client;
  EXPECT_TRUE(client.Connect(deep + "/volume").ok());
}

TEST_F(ServerTest, Connect_WithoutServerSaysSo) {
  TemporaryDirectory empty;
  TestClient client;
  EXPECT_EQ(client.Connect(empty.path()).code(), ENOENT);
  EXPECT_EQ(client.Connect(empty.path() + "/none").code(), ENOENT);
}

TEST_F(ServerTest, SetPattern_WhileClientsReadAbsentPages) {
  constexpr int kReaders = 2;
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> readers;
  std::atomic<int> ready{0};
  for (int i = 0; i < kReaders; i++) {
    readers.emplace_back([&, i] {
      TestClient client;
      ASSERT_TRUE(client.Connect(volume_.path(), {.bitmap = BitmapMode::kOff}).ok());
      ready++;
      Random random(static_cast<uint64_t>(i));
      std::vector<std::byte> page(kPageSize);
      const std::vector<std::byte> zeros(kPageSize);
      while (!stop) {
        const Status read = client.Read(random.Below(1024) * kPageSize, page);
        if (!read.ok() || page != zeros) {
          wrong++;
        }
      }
    });
  }
  ASSERT_TRUE(Eventually([&] { return ready == kReaders; }));
  ASSERT_TRUE(volume_.server().SetDramRatio(0.01).ok());
  for (int i = 0; i < 20; i++) {
    driver::Pattern pattern;
    ASSERT_TRUE(SecureRandom(pattern.line.data(), pattern.line.size()).ok());
    const Status set = volume_.server().SetPattern(pattern);
    EXPECT_TRUE(set.ok()) << set.ToString();
  }
  stop = true;
  for (auto& reader : readers) {
    reader.join();
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(volume_.service().opened, kReaders);
}

TEST_F(ServerTest, SetPattern_ExpelsAClientThatDoesNotAcknowledge) {
  EchoHandler handler;
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path(), {}, &handler).ok());
  volume_.service().callback_timeout = 1;
  std::unique_lock hold(handler.hold);  // its callback thread is stuck from the next call on
  EXPECT_EQ(client.channel->Call({.opcode = kCallBack, .body = BytesOf(1), .in = {}, .out = {}}).status().code(),
            ETIMEDOUT);
  driver::Pattern pattern;
  ASSERT_TRUE(SecureRandom(pattern.line.data(), pattern.line.size()).ok());
  const Status set = volume_.server().SetPattern(pattern);
  EXPECT_TRUE(set.ok()) << set.ToString();
  EXPECT_TRUE(volume_.server().Sessions().empty());
  std::vector<std::byte> page(kPageSize);
  EXPECT_EQ(client.Read(0, page).code(), ENOTCONN);
}

TEST_F(ServerTest, Session_GoneBeforeItsChannelsIsENOTCONN) {
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path()).ok());
  std::vector<std::byte> page(kPageSize);
  ASSERT_TRUE(client.Read(0, page).ok());
  client.session.reset();
  EXPECT_EQ(client.Read(0, page).code(), ENOTCONN);
  EXPECT_EQ(client.Write(0, page).code(), ENOTCONN);
  EXPECT_EQ(client.channel->Call({.opcode = kEcho, .body = {}, .in = {}, .out = {}}).status().code(), ENOTCONN);
}

TEST_F(ServerTest, OpenChannel_FromManyThreads) {
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path()).ok());
  std::vector<std::thread> threads;
  std::atomic<int> worked{0};
  for (int i = 0; i < 8; i++) {
    threads.emplace_back([&] {
      for (int k = 0; k < 5; k++) {
        const auto channel = client.session->OpenChannel({});
        ASSERT_TRUE(channel.ok()) << channel.status().ToString();
        worked += (*channel)->Call({.opcode = kEcho, .body = {}, .in = {}, .out = {}}).ok();
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(worked, 40);
  // Counters of channels that are gone are kept.
  EXPECT_EQ(MetricOf(client.session->Metrics(), "calls_total"), 40U);
}

TEST(Server, Start_FailuresAreErrors) {
  TestVolume unformatted({.pages = 256});
  EXPECT_EQ(unformatted.Start().code(), ENOENT);
  TestVolume no_socket({.pages = 256});
  ASSERT_TRUE(no_socket.Format().ok());
  no_socket.options().socket_directory += "/none";
  EXPECT_EQ(no_socket.Start().code(), ENOENT);
  TestVolume no_workers({.pages = 256}, 0);
  ASSERT_TRUE(no_workers.Format().ok());
  EXPECT_EQ(no_workers.Start().code(), EINVAL);
}

}  // namespace
}  // namespace termfs::tlib
