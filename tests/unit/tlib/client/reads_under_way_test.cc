// SPDX-License-Identifier: Apache-2.0
//
// Channel::BeginRead, AwaitReads, PollReads and ArmReads.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <optional>
#include <set>

#include "base/interruption.h"
#include "tests/unit/tlib/volume_fixture.h"

namespace termfs::tlib {
namespace {

constexpr uint64_t kPages = 1024;

std::byte ByteOf(uint64_t page) { return static_cast<std::byte>(page % 251 + 1); }

// All pages are written; some of them are in frames.
class ReadsUnderWayTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(volume_.Format().ok());
    const Status started = volume_.Start();
    ASSERT_TRUE(started.ok()) << started.ToString();
    ASSERT_TRUE(client_.Connect(volume_.path()).ok());
    for (uint64_t page = 0; page < kPages; page++) {
      ASSERT_TRUE(client_.Write(page * kPageSize, std::vector<std::byte>(kPageSize, ByteOf(page))).ok());
    }
    const server::PageRange all{.first = {0}, .count = kPages};
    ASSERT_TRUE(volume_.server().RunInCoroutine([&] { return volume_.server().region().Flush({&all, 1}); }).ok());
  }

  client::ReadRequest ReadOf(uint64_t page, uint64_t place) {
    std::byte* const to = client_.channel->buffer().data() + place * kPageSize;
    std::fill_n(to, kPageSize, std::byte{0});
    return {.offset = {page * kPageSize}, .length = kPageSize, .destination = to};
  }
  // Of `count` pages, `step` apart.
  std::vector<client::ReadRequest> ReadsOf(uint64_t count, uint64_t step, uint64_t first = 0) {
    std::vector<client::ReadRequest> reads;
    for (uint64_t i = 0; i < count; i++) {
      reads.push_back(ReadOf((first + i * step) % kPages, i));
    }
    return reads;
  }
  static bool IsWhole(const client::ReadRequest& read) {
    const std::byte expected = ByteOf(read.offset.value / kPageSize);
    return std::all_of(read.destination, read.destination + read.length, [&](std::byte b) { return b == expected; });
  }
  uint64_t Counted(std::string_view name) { return MetricOf(client_.session->Metrics(), name); }

  TestVolume volume_{{.pages = kPages, .dram_ratio = 0.25}};
  TestClient client_;
};

// What is not in memory is never taken in, and the server does not answer for one page of it.
class LateReadTest : public ReadsUnderWayTest {
 protected:
  static constexpr uint64_t kHeldPage = kPages - 1;

  LateReadTest() { volume_.options().region.choice = server::FrameChoice::kStatic; }
  void SetUp() override {
    ReadsUnderWayTest::SetUp();
    ASSERT_TRUE(client_.Connect(volume_.path(), {.call_timeout = std::chrono::milliseconds(300)}).ok());
    ASSERT_TRUE(holder_.Connect(volume_.path()).ok());
    holding_ = std::thread([this] {
      const auto body = BytesOf(kHeldPage);
      const auto reply = holder_.channel->Call(
          {.opcode = kHoldPage, .body = body, .in = holder_.channel->buffer().first(1), .out = {}});
      EXPECT_EQ(reply.status().code(), EPERM) << reply.status().ToString();
    });
    ASSERT_TRUE(Eventually([this] { return volume_.service().withholding == 1; }));
  }
  void TearDown() override {
    volume_.service().withheld = false;
    holding_.join();
  }

  TestClient holder_;
  std::thread holding_;
};

TEST_F(ReadsUnderWayTest, EveryReadIsDoneAtOnceOrNamedOnce) {
  constexpr uint64_t kPlaces = 200;  // more than there are credits
  for (uint64_t first = 0; first + kPlaces <= kPages; first += kPlaces) {
    const std::vector<client::ReadRequest> reads = ReadsOf(kPlaces, 1, first);
    std::vector<std::byte*> under_way;
    ASSERT_TRUE(client_.channel->BeginRead(reads, under_way).ok());
    const std::set<std::byte*> named(under_way.begin(), under_way.end());
    EXPECT_EQ(named.size(), under_way.size());
    for (const client::ReadRequest& read : reads) {
      if (!named.contains(read.destination)) {
        EXPECT_TRUE(IsWhole(read)) << "page " << read.offset.value / kPageSize;
      }
    }
    std::vector<std::byte*> done;
    while (done.size() < under_way.size()) {
      const size_t before = done.size();
      ASSERT_TRUE(client_.channel->AwaitReads(done).ok());
      ASSERT_GT(done.size(), before);
    }
    EXPECT_EQ(std::set<std::byte*>(done.begin(), done.end()), named);
    EXPECT_TRUE(std::all_of(reads.begin(), reads.end(), IsWhole));
  }
  EXPECT_GT(Counted("rpc_reads_total"), 64u) << "or it shows nothing";
  EXPECT_GT(Counted("read_hit_pages_total"), 64u);
  EXPECT_EQ(Counted("read_miss_count"), Counted("rpc_reads_total")) << "each is timed";
}

// They have all of the channel's credits, and have been answered when others want one.
TEST_F(ReadsUnderWayTest, ManyMoreThanCredits_OthersFindRoom) {
  constexpr uint64_t kPlaces = 200;
  for (uint64_t round = 0; round < 3; round++) {
    const std::vector<client::ReadRequest> reads = ReadsOf(kPlaces, 5, round * 37);
    std::vector<std::byte*> under_way;
    ASSERT_TRUE(client_.channel->BeginRead(reads, under_way).ok());
    ASSERT_GT(under_way.size(), 2 * kChannelCredits) << "or it shows nothing";
    const auto body = BytesOf(7);
    EXPECT_TRUE(client_.channel->Call({.opcode = kEcho, .body = body, .in = {}, .out = {}}).ok());
    client::ReadRequest other = ReadOf(round, kPlaces);
    EXPECT_TRUE(client_.channel->Read({&other, 1}).ok());
    EXPECT_TRUE(IsWhole(other));
    std::vector<std::byte*> done;
    while (done.size() < under_way.size()) {
      ASSERT_TRUE(client_.channel->AwaitReads(done).ok());
    }
    EXPECT_TRUE(std::all_of(reads.begin(), reads.end(), IsWhole));
  }
}

// Its late reply is told of, not that of a read which became void with it.
TEST_F(ReadsUnderWayTest, ACallGivenUp_VoidsThemAndIsAnsweredLate) {
  const std::vector<client::ReadRequest> reads = ReadsOf(kPages / 8, 8);
  std::vector<std::byte*> under_way;
  ASSERT_TRUE(client_.channel->BeginRead(reads, under_way).ok());
  ASSERT_FALSE(under_way.empty());
  const std::byte* const buffer = client_.channel->buffer().data();
  const auto body = BytesOf(4711);
  const auto reply = client_.channel->Call({.opcode = kWithhold,
                                            .body = body,
                                            .in = {},
                                            .out = client_.channel->buffer().first(64),
                                            .timeout = std::chrono::milliseconds(20)});
  EXPECT_EQ(reply.status().code(), ETIMEDOUT);
  EXPECT_NE(client_.channel->buffer().data(), buffer);
  std::vector<std::byte*> done;
  EXPECT_TRUE(client_.channel->AwaitReads(done).ok());
  EXPECT_TRUE(done.empty());
  std::optional<std::vector<std::byte>> late;
  client_.channel->AfterGivenUp([&](const Result<std::span<const std::byte>>& said) {
    late.emplace();
    if (said.ok()) {
      late->assign(said->begin(), said->end());
    }
  });
  EXPECT_FALSE(late.has_value());
  volume_.service().withheld = false;
  EXPECT_TRUE(Eventually([&] {
    EXPECT_TRUE(client_.channel->Call({.opcode = kEcho, .body = {}, .in = {}, .out = {}}).ok());
    return late.has_value();
  }));
  EXPECT_EQ(*late, body);
}

// Whose page somebody holds at the server, while others are read all the time.
TEST_F(LateReadTest, OthersAreAnswered_ItIsNamedInTime) {
  for (const auto take : {&client::Channel::AwaitReads, &client::Channel::PollReads}) {
    const std::byte* const buffer = client_.channel->buffer().data();
    std::vector<std::byte*> under_way;
    client::ReadRequest held = ReadOf(kHeldPage, 0);
    ASSERT_TRUE(client_.channel->BeginRead({&held, 1}, under_way).ok());
    ASSERT_EQ(under_way, std::vector<std::byte*>{held.destination}) << "or it shows nothing";
    std::vector<std::byte*> done;
    Status status;
    uint64_t answered = 0;
    const uint64_t voids = client_.channel->voids();
    EXPECT_TRUE(Eventually([&] {
      const client::ReadRequest other = ReadOf(kHeldPage - 1 - answered % 512, 1);
      EXPECT_TRUE(client_.channel->BeginRead({&other, 1}, under_way).ok());
      done.clear();
      status = ((*client_.channel).*take)(done);
      answered += status.ok() ? done.size() : 0;
      return !status.ok();
    }));
    EXPECT_EQ(status.code(), ETIMEDOUT);
    EXPECT_EQ(done, std::vector<std::byte*>{held.destination});
    EXPECT_GT(answered, 0u) << "or it shows nothing";
    EXPECT_GT(client_.channel->voids(), voids);
    EXPECT_NE(client_.channel->buffer().data(), buffer);
  }
}

// What the server answers later does not reach who begins in the same places.
TEST_F(LateReadTest, DroppedWhileUnderWay_OthersHaveTheirPlaces) {
  const std::byte* const buffer = client_.channel->buffer().data();
  std::vector<std::byte*> under_way;
  const client::ReadRequest held = ReadOf(kHeldPage, 0);
  ASSERT_TRUE(client_.channel->BeginRead({&held, 1}, under_way).ok());
  ASSERT_EQ(under_way.size(), 1u) << "or it shows nothing";
  const uint64_t voids = client_.channel->voids();
  client_.channel->DropReads();
  EXPECT_GT(client_.channel->voids(), voids);
  EXPECT_NE(client_.channel->buffer().data(), buffer) << "the server may still write to it";
  std::vector<std::byte*> done;
  EXPECT_TRUE(client_.channel->PollReads(done).ok());
  EXPECT_TRUE(done.empty());
  client::ReadRequest other = ReadOf(1, 0);
  EXPECT_TRUE(client_.channel->Read({&other, 1}).ok());
  EXPECT_TRUE(IsWhole(other));
}

// Nor may who would not wait take what is still to be answered for room.
TEST_F(LateReadTest, DroppedWhileUnderWay_IsNoRoomUntilItIsAnswered) {
  ASSERT_EQ(client_.channel->ReadRoom(), kChannelCredits);
  std::vector<client::ReadRequest> held;
  for (uint64_t i = 0; i < kChannelCredits; i++) {
    held.push_back(ReadOf(kHeldPage, i));
  }
  std::vector<std::byte*> under_way;
  ASSERT_TRUE(client_.channel->BeginRead(held, under_way).ok());
  ASSERT_EQ(under_way.size(), kChannelCredits) << "or it shows nothing";
  EXPECT_EQ(client_.channel->ReadRoom(), 0u);
  client_.channel->DropReads();
  EXPECT_EQ(client_.channel->ReadRoom(), 0u);
  volume_.service().withheld = false;
  EXPECT_TRUE(Eventually([&] { return client_.channel->ReadRoom() == kChannelCredits; }));
}

// Or it would never try, and never hear that the connection is gone.
TEST_F(LateReadTest, DroppedThenCutOff_ThereIsRoomToHearOfIt) {
  std::vector<client::ReadRequest> held;
  for (uint64_t i = 0; i < kChannelCredits; i++) {
    held.push_back(ReadOf(kHeldPage, i));
  }
  std::vector<std::byte*> under_way;
  ASSERT_TRUE(client_.channel->BeginRead(held, under_way).ok());
  client_.channel->DropReads();
  ASSERT_EQ(client_.channel->ReadRoom(), 0u) << "or it shows nothing";
  volume_.server().Expel({client_.session->id()}, "test");
  EXPECT_TRUE(Eventually([&] { return client_.channel->ReadRoom() == kChannelCredits; }));
  const client::ReadRequest other = ReadOf(1, 0);
  EXPECT_EQ(client_.channel->BeginRead({&other, 1}, under_way).code(), ENOTCONN);
}

TEST_F(ReadsUnderWayTest, OfNothing_AwaitReturns) {
  std::vector<std::byte*> done;
  EXPECT_TRUE(client_.channel->AwaitReads(done).ok());
  EXPECT_TRUE(done.empty());
}

TEST_F(ReadsUnderWayTest, OtherCallsInBetween_AreAnswered) {
  const std::vector<client::ReadRequest> reads = ReadsOf(kChannelCredits, 31);
  std::vector<std::byte*> under_way;
  ASSERT_TRUE(client_.channel->BeginRead(reads, under_way).ok());
  const auto body = BytesOf(42);
  const auto reply = client_.channel->Call({.opcode = kEcho, .body = body, .in = {}, .out = {}});
  ASSERT_TRUE(reply.ok()) << reply.status().ToString();
  EXPECT_TRUE(std::equal(reply->body.begin(), reply->body.end(), body.begin(), body.end()));
  client::ReadRequest other = ReadOf(kPages - 1, kChannelCredits);
  EXPECT_TRUE(client_.channel->Read({&other, 1}).ok());
  EXPECT_TRUE(IsWhole(other));
  std::vector<std::byte*> done;
  while (done.size() < under_way.size()) {
    ASSERT_TRUE(client_.channel->AwaitReads(done).ok());
  }
  EXPECT_TRUE(std::all_of(reads.begin(), reads.end(), IsWhole));
}

// The server may still write where they were to be read.
TEST_F(ReadsUnderWayTest, ARefusedRead_VoidsTheOthersAndTheirBuffer) {
  const std::vector<client::ReadRequest> reads = ReadsOf(kPages / 8, 8);
  std::vector<std::byte*> under_way;
  ASSERT_TRUE(client_.channel->BeginRead(reads, under_way).ok());
  ASSERT_FALSE(under_way.empty());
  const std::byte* const buffer = client_.channel->buffer().data();
  const client::ReadRequest beyond{
      .offset = {kPages * kPageSize}, .length = 1, .destination = client_.channel->buffer().data()};
  EXPECT_FALSE(client_.channel->BeginRead({&beyond, 1}, under_way).ok());
  EXPECT_NE(client_.channel->buffer().data(), buffer);
  std::vector<std::byte*> done;
  EXPECT_TRUE(client_.channel->AwaitReads(done).ok());
  EXPECT_TRUE(done.empty());
  client::ReadRequest again = ReadOf(5, 0);
  EXPECT_TRUE(client_.channel->Read({&again, 1}).ok());
  EXPECT_TRUE(IsWhole(again));
}

// Whoever waits for something else, too.
TEST_F(ReadsUnderWayTest, PolledAndArmed_AllEnd) {
  int waits = 0;
  for (uint64_t round = 0; round < 20; round++) {
    const std::vector<client::ReadRequest> reads = ReadsOf(kChannelCredits, 31, round * 7);
    std::vector<std::byte*> under_way;
    ASSERT_TRUE(client_.channel->BeginRead(reads, under_way).ok());
    std::vector<std::byte*> done;
    while (done.size() < under_way.size()) {
      client::ReadsFds fds{};
      if (client_.channel->ArmReads(fds)) {
        pollfd waited[2] = {{fds[0], POLLIN, 0}, {fds[1], POLLIN, 0}};
        EXPECT_EQ(poll(waited, 2, 20'000), 1) << "the time was over";
        EXPECT_EQ(waited[1].revents, 0);
        waits++;
      }
      client_.channel->DisarmReads();
      ASSERT_TRUE(client_.channel->PollReads(done).ok());
    }
    EXPECT_TRUE(std::all_of(reads.begin(), reads.end(), IsWhole));
  }
  EXPECT_GT(waits, 0) << "or it shows nothing";
}

// The reply to one of them was taken in by another call, so no descriptor would tell of it.
TEST_F(ReadsUnderWayTest, AnsweredDuringAnotherCall_AreNotWaitedFor) {
  const std::vector<client::ReadRequest> reads = ReadsOf(kChannelCredits / 2, 31);
  std::vector<std::byte*> under_way;
  ASSERT_TRUE(client_.channel->BeginRead(reads, under_way).ok());
  ASSERT_FALSE(under_way.empty());
  const auto body = BytesOf(1);
  client::ReadsFds fds{};
  EXPECT_TRUE(Eventually([&] {
    EXPECT_TRUE(client_.channel->Call({.opcode = kEcho, .body = body, .in = {}, .out = {}}).ok());
    const bool armed = client_.channel->ArmReads(fds);
    client_.channel->DisarmReads();
    return !armed;
  }));
  std::vector<std::byte*> done;
  EXPECT_TRUE(client_.channel->PollReads(done).ok());
  EXPECT_FALSE(done.empty());
}

TEST_F(ReadsUnderWayTest, OfNothing_ArmedWithoutDescriptors) {
  client::ReadsFds fds{};
  EXPECT_TRUE(client_.channel->ArmReads(fds));
  EXPECT_EQ(fds, (client::ReadsFds{-1, -1}));
  client_.channel->DisarmReads();
  std::vector<std::byte*> done;
  EXPECT_TRUE(client_.channel->PollReads(done).ok());
  EXPECT_TRUE(done.empty());
}

TEST_F(ReadsUnderWayTest, AwaitInterrupted_NothingIsVoid) {
  auto interruption = Interruption::Create();
  ASSERT_TRUE(interruption.ok());
  auto opened = client_.session->OpenChannel({.interruption = interruption->get()});
  ASSERT_TRUE(opened.ok());
  client_.channel = std::move(*opened);
  bool interrupted = false;
  for (uint64_t round = 1; round < 1000 && !interrupted; round++) {
    const std::vector<client::ReadRequest> reads = ReadsOf(kChannelCredits, 31, round * 7);
    std::vector<std::byte*> under_way;
    ASSERT_TRUE(client_.channel->BeginRead(reads, under_way).ok());
    std::vector<std::byte*> done;
    (*interruption)->Begin(round);
    ASSERT_TRUE((*interruption)->Interrupt(round));
    interrupted = client_.channel->AwaitReads(done).code() == EINTR;
    (*interruption)->End();
    while (done.size() < under_way.size()) {
      ASSERT_TRUE(client_.channel->AwaitReads(done).ok());
    }
    EXPECT_TRUE(std::all_of(reads.begin(), reads.end(), IsWhole));
  }
  EXPECT_TRUE(interrupted) << "or it shows nothing";
  EXPECT_EQ(client_.channel->voids(), 0u);
}

TEST_F(ReadsUnderWayTest, TheServerGoes_ThatIsPolled) {
  const std::vector<client::ReadRequest> reads = ReadsOf(kPages / 8, 8);
  std::vector<std::byte*> under_way;
  ASSERT_TRUE(client_.channel->BeginRead(reads, under_way).ok());
  ASSERT_FALSE(under_way.empty());
  volume_.Stop();
  std::vector<std::byte*> done;
  Status status;
  EXPECT_TRUE(Eventually([&] {
    client::ReadsFds fds{};
    const bool armed = client_.channel->ArmReads(fds);
    pollfd waited[2] = {{fds[0], POLLIN, 0}, {fds[1], POLLIN, 0}};
    poll(waited, 2, armed ? 20'000 : 0);
    client_.channel->DisarmReads();
    status = client_.channel->PollReads(done);
    return !status.ok() || done.size() == under_way.size();
  }));
  if (status.ok()) {  // all were answered before
    EXPECT_EQ(client_.channel->BeginRead(reads, under_way).code(), ENOTCONN);
  } else {
    EXPECT_EQ(status.code(), ENOTCONN);
    EXPECT_EQ(client_.channel->voids(), 1u);
  }
}

TEST_F(ReadsUnderWayTest, TheServerGoes_TheyFail) {
  const std::vector<client::ReadRequest> reads = ReadsOf(kPages / 8, 8);
  std::vector<std::byte*> under_way;
  ASSERT_TRUE(client_.channel->BeginRead(reads, under_way).ok());
  volume_.Stop();
  std::vector<std::byte*> done;
  Status status;
  for (size_t i = 0; i <= under_way.size() && status.ok(); i++) {  // what was answered before comes first
    status = client_.channel->AwaitReads(done);
    if (done.size() == under_way.size()) {
      status = client_.channel->BeginRead(reads, under_way);
    }
  }
  EXPECT_EQ(status.code(), ENOTCONN) << status.ToString();
  client_.channel->Detach();
  EXPECT_EQ(client_.channel->AwaitReads(done).code(), ENOTCONN);
}

}  // namespace
}  // namespace termfs::tlib
