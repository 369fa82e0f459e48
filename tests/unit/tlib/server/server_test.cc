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

#include "tests/unit/tlib/volume_fixture.h"

namespace termfs::tlib {
namespace {

using client::BitmapMode;
using client::CallReply;
using std::chrono::milliseconds;

class ServerTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(volume_.Format().ok());
    const Status started = volume_.Start();
    ASSERT_TRUE(started.ok()) << started.ToString();
  }
  void TearDown() override { volume_.service().withheld = false; }
  static std::vector<std::byte> RandomBytes(size_t size, uint64_t seed) {
    Random random(seed);
    std::vector<std::byte> bytes(size);
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(random());
    }
    return bytes;
  }
  TestVolume volume_{{.pages = 1024, .dram_ratio = 0.5}};
};

TEST_F(ServerTest, Read_OfPagesInFramesIsOneSided) {
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path()).ok());
  const auto data = RandomBytes(100'000, 1);
  ASSERT_TRUE(client.Write(12345, data).ok());
  std::vector<std::byte> back(data.size());
  ASSERT_TRUE(client.Read(12345, back).ok());
  EXPECT_EQ(back, data);
  const auto metrics = client.session->Metrics();
  EXPECT_EQ(MetricOf(metrics, "rpc_reads_total"), 0U);
  EXPECT_EQ(MetricOf(metrics, "read_hit_pages_total"), 25U);
  EXPECT_EQ(MetricOf(volume_.server().Metrics(), "rpc_reads_total"), 0U);
}

TEST_F(ServerTest, Read_OfAbsentPagesIsFoundByTheBitmap) {
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path()).ok());
  std::vector<std::byte> back(8192, std::byte{1});
  ASSERT_TRUE(client.Read(0, back).ok());
  EXPECT_EQ(back, std::vector<std::byte>(8192));
  const auto metrics = client.session->Metrics();
  EXPECT_EQ(MetricOf(metrics, "rpc_reads_total"), 1U);
  EXPECT_EQ(MetricOf(metrics, "rpc_read_pages_total"), 2U);
  EXPECT_EQ(MetricOf(metrics, "absent_by_bitmap_pages_total"), 2U);
  EXPECT_EQ(MetricOf(metrics, "absent_by_pattern_pages_total"), 0U);
}

TEST_F(ServerTest, Read_OfAbsentPagesIsFoundByThePattern) {
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path(), {.bitmap = BitmapMode::kOff}).ok());
  std::vector<std::byte> back(8192, std::byte{1});
  ASSERT_TRUE(client.Read(100, back).ok());
  EXPECT_EQ(back, std::vector<std::byte>(8192));
  const auto metrics = client.session->Metrics();
  EXPECT_EQ(MetricOf(metrics, "rpc_reads_total"), 1U);
  EXPECT_EQ(MetricOf(metrics, "absent_by_bitmap_pages_total"), 0U);
  EXPECT_EQ(MetricOf(metrics, "absent_by_pattern_pages_total"), 3U);
}

TEST_F(ServerTest, Read_BatchMixesHitsAndMisses) {
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path(), {.bitmap = BitmapMode::kOff}).ok());
  const auto data = RandomBytes(64 * kPageSize, 2);
  ASSERT_TRUE(client.Write(0, data).ok());
  std::vector<client::ReadRequest> reads;
  for (uint32_t i = 0; i < 128; i++) {  // more than credits and more than a window; every other page is absent
    reads.push_back({.offset = {(i % 2 == 0 ? i / 2 : 512 + i / 2) * kPageSize},
                     .length = static_cast<uint32_t>(kPageSize),
                     .destination = client.channel->buffer().data() + i * kPageSize});
  }
  const Status status = client.channel->Read(reads);
  ASSERT_TRUE(status.ok()) << status.ToString();
  const std::vector<std::byte> zeros(kPageSize);
  for (uint32_t i = 0; i < 128; i++) {
    const std::byte* const expected = i % 2 == 0 ? data.data() + i / 2 * kPageSize : zeros.data();
    EXPECT_EQ(std::memcmp(reads[i].destination, expected, kPageSize), 0) << i;
  }
  EXPECT_EQ(MetricOf(client.session->Metrics(), "rpc_reads_total"), 64U);
}

TEST_F(ServerTest, Read_PulledBitmapLearnsFromReplies) {
  TestClient client;
  ASSERT_TRUE(
      client.Connect(volume_.path(), {.bitmap = BitmapMode::kPulled, .pull_period = std::chrono::hours(1)}).ok());
  std::vector<std::byte> page(kPageSize);
  ASSERT_TRUE(client.Read(0, page).ok());  // the first pull said: absent
  EXPECT_EQ(MetricOf(client.session->Metrics(), "absent_by_bitmap_pages_total"), 1U);
  // Once the page is in a frame the next reply says so, and the one after is a one-sided hit.
  ASSERT_TRUE(client.Write(0, page).ok());
  ASSERT_TRUE(client.Read(0, page).ok());
  ASSERT_TRUE(client.Read(0, page).ok());
  const auto metrics = client.session->Metrics();
  EXPECT_EQ(MetricOf(metrics, "rpc_reads_total"), 2U);
  EXPECT_EQ(MetricOf(metrics, "read_hit_pages_total"), 1U);
  EXPECT_EQ(MetricOf(metrics, "bitmap_pulls_total"), 1U);
}

TEST_F(ServerTest, Read_PulledBitmapOfALargeRegionComesInTurns) {
  TestClient client;
  const client::SessionOptions three_pieces = {
      .bitmap = BitmapMode::kPulled, .pull_period = milliseconds(5), .pull_pages = 384};
  ASSERT_TRUE(client.Connect(volume_.path(), three_pieces).ok());
  TestClient writer;
  ASSERT_TRUE(writer.Connect(volume_.path()).ok());
  const auto data = RandomBytes(kPageSize, 4);
  ASSERT_TRUE(writer.Write(1000 * kPageSize, data).ok());  // in the last piece
  const auto count = [&](const char* name) { return MetricOf(client.session->Metrics(), name); };
  const uint64_t pulls = count("bitmap_pulls_total");
  ASSERT_TRUE(Eventually([&] { return count("bitmap_pulls_total") >= pulls + 4; }));  // one may have been under way
  std::vector<std::byte> page(kPageSize);
  ASSERT_TRUE(client.Read(1000 * kPageSize, page).ok());
  EXPECT_EQ(page, data);
  EXPECT_EQ(count("rpc_reads_total"), 0U);
  const uint64_t bytes = count("bitmap_pulled_bytes_total");
  // The whole region's at first, and never again at once.
  EXPECT_LE(bytes, 1024 / 8 + (count("bitmap_pulls_total") - 1) * 384 / 8);
}

TEST_F(ServerTest, Read_OutsideOfRegionOrBufferIsRefused) {
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path()).ok());
  std::byte* const buffer = client.channel->buffer().data();
  const uint64_t end = 1024 * kPageSize;
  for (const client::ReadRequest& read : std::vector<client::ReadRequest>{
           {.offset = {end}, .length = 1, .destination = buffer},
           {.offset = {end - 1}, .length = 2, .destination = buffer},
           {.offset = {UINT64_MAX - 1}, .length = 4, .destination = buffer},
           {.offset = {0}, .length = 0, .destination = buffer},
           {.offset = {0}, .length = kMaxTransfer + 1, .destination = buffer},
           {.offset = {0}, .length = 1, .destination = buffer - 1},
           {.offset = {0}, .length = 8192, .destination = buffer + client.channel->buffer().size() - 8191},
           {.offset = {0}, .length = 1, .destination = nullptr}}) {
    EXPECT_EQ(client.channel->Read({&read, 1}).code(), EINVAL) << read.offset.value << " " << read.length;
  }
}

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

// Reads the last `pages` pages of an ODP region; most are absent.
void ReadByFaults(milliseconds delay, uint64_t pages) {
  TestVolume volume({.kind = driver::RegionKind::kOdp, .pages = 256, .dram_ratio = 0.1, .odp_delay = delay});
  ASSERT_TRUE(volume.Format().ok());
  ASSERT_TRUE(volume.Start().ok());
  TestClient client;
  ASSERT_TRUE(client.Connect(volume.path()).ok());
  std::vector<std::byte> page(kPageSize);
  for (uint64_t i = 0; i < 256; i++) {
    std::fill(page.begin(), page.end(), static_cast<std::byte>(i + 1));
    ASSERT_TRUE(client.Write(i * kPageSize, page).ok());
  }
  const auto faults = [&] { return MetricOf(volume.server().Metrics(), "faults_total"); };
  const uint64_t at_first = faults();
  for (uint64_t i = 256 - pages; i < 256; i++) {
    const uint64_t before = faults();
    const auto begin = std::chrono::steady_clock::now();
    const Status read = client.Read(i * kPageSize, page);
    const auto took = std::chrono::steady_clock::now() - begin;
    ASSERT_TRUE(read.ok()) << read.ToString();
    EXPECT_EQ(page, std::vector<std::byte>(kPageSize, static_cast<std::byte>(i + 1)));
    if (faults() != before) {
      EXPECT_GE(took, delay) << i;
    }
  }
  EXPECT_GT(faults(), at_first);
}

TEST(Server, OdpDelay_EachFaultTakesAsLong) { ReadByFaults(milliseconds(50), 8); }
TEST(Server, Odp_NoDelay_EveryPageComes) { ReadByFaults(milliseconds(0), 256); }

TEST(Server, Heat_PromotesWhatClientsRead) {
  TestVolume volume({.pages = 1024, .dram_ratio = 0.1, .sample_period = milliseconds(20)});
  ASSERT_TRUE(volume.Format().ok());
  ASSERT_TRUE(volume.Start().ok());
  TestClient client;
  ASSERT_TRUE(client.Connect(volume.path(), {.heat_period = milliseconds(20)}).ok());
  std::vector<std::byte> page(kPageSize);
  EXPECT_TRUE(Eventually([&] {
    for (uint64_t i = 0; i < 50; i++) {
      if (!client.Read(i * kPageSize, page).ok()) {
        return false;
      }
    }
    const auto metrics = volume.server().Metrics();
    return MetricOf(metrics, "heat_reads_total") > 2 && MetricOf(metrics, "pages_present") >= 50;
  }));
}

}  // namespace
}  // namespace termfs::tlib
