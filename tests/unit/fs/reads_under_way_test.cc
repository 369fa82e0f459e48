// SPDX-License-Identifier: Apache-2.0
//
// Reads under way while something happens: to the file, to the lane, to the server. They are held until it has.
#include <fcntl.h>
#include <gtest/gtest.h>

#include "fs/proto/opcodes.h"
#include "tests/unit/eventually.h"
#include "tests/unit/fs/lane_of_reads.h"
#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {

using client::OpenFile;

namespace {

constexpr size_t kPage = 4096;

using Done = std::map<uint64_t, std::string>;

class HeldReads : public testing::Test {
 protected:
  HeldReads() {
    EXPECT_TRUE(a.Write(file, 0, std::string(3 * kPage, 'a')).ok());
    volume.tlib().HoldReads();
  }
  ~HeldReads() override { a.Close(file); }

  void BeginThree() {
    for (uint64_t i = 0; i < 3; ++i) {
      reads.Begin(file, i * kPage, kPage);
    }
    ASSERT_EQ(reads.under_way(), 3u);
  }
  void ExpectThree(const std::string& each) {
    volume.tlib().AnswerReads();
    reads.AwaitAll();
    EXPECT_EQ(reads.TakeDone(), (Done{{1, each}, {2, each}, {3, each}}));
  }

  MemoryVolume volume{uint64_t{16} << 20};
  Mount a{volume};
  Mount b{volume};
  OpenFile* file = a.Create("f");
  LaneOfReads reads{*a.fs, 4, 2 * kPage};
};

}  // namespace

TEST_F(HeldReads, TheyEndWithTheirBytes) {
  BeginThree();
  EXPECT_TRUE(reads.Poll().ok());
  EXPECT_EQ(reads.under_way(), 3u);
  ExpectThree(std::string(kPage, 'a'));
  EXPECT_EQ(a.Metric("fs_server_reads_total"), 0u);
  EXPECT_EQ(a.Metric("fs_reads_total"), 3u);
  EXPECT_EQ(a.Metric("fs_read_bytes_total"), 3 * kPage);
}

// The pages are another file's by the time they are read.
TEST_F(HeldReads, TheFileIsTruncated_ItsEndIsSeenAndNobodyElsesBytes) {
  BeginThree();
  ASSERT_TRUE(b.Resize(b.InodeOf("f"), kPage / 2).ok());
  OpenFile* const other = b.Create("g");
  ASSERT_TRUE(b.Write(other, 0, std::string(15 << 20, 'g')).ok()) << "or they are not reused";
  volume.tlib().AnswerReads();
  reads.AwaitAll();
  EXPECT_EQ(reads.TakeDone(), (Done{{1, std::string(kPage / 2, 'a')}, {2, ""}, {3, ""}}));
  b.Close(other);
}

TEST_F(HeldReads, TheFileIsRewritten_TheNewBytesAreRead) {
  BeginThree();
  OpenFile* const rewritten = b.Open("f", O_RDWR | O_TRUNC);
  ASSERT_TRUE(b.Write(rewritten, 0, std::string(3 * kPage, 'b')).ok());
  ExpectThree(std::string(kPage, 'b'));
  b.Close(rewritten);
}

TEST_F(HeldReads, AHoleBesideIsFilled_ItIsNotZerosAnyMore) {
  ASSERT_TRUE(a.Resize(a.InodeOf("f"), 4 * kPage, file).ok());
  ASSERT_EQ(a.Read(file, 0, 4 * kPage).size(), 4 * kPage);  // brings the map
  reads.Begin(file, 2 * kPage, 2 * kPage);
  ASSERT_EQ(reads.under_way(), 1u);
  OpenFile* const written = b.Open("f");
  ASSERT_TRUE(b.Write(written, 3 * kPage, std::string(kPage, 'b')).ok());
  volume.tlib().AnswerReads();
  reads.AwaitAll();
  EXPECT_EQ(reads.TakeDone(), (Done{{1, std::string(kPage, 'a') + std::string(kPage, 'b')}}));
  b.Close(written);
}

TEST_F(HeldReads, TheServerDiesAndComesBack_TheyAreReadAgain) {
  BeginThree();
  volume.KillAndRestart();
  EXPECT_TRUE(reads.Poll().ok());
  ExpectThree(std::string(kPage, 'a'));
  EXPECT_EQ(a.Metric("link_reconnections_total"), 1u);
}

TEST_F(HeldReads, TheServerStaysAway_TheyFail) {
  volume.SetReconnect(std::chrono::seconds(0));
  Mount c(volume);
  OpenFile* const opened = c.Open("f", O_RDWR | O_NOATIME);  // with a map
  LaneOfReads others(*c.fs, 2, kPage);
  others.Begin(opened, 0, kPage);
  others.Begin(opened, kPage, kPage);
  ASSERT_EQ(others.under_way(), 2u);
  volume.Kill();
  others.AwaitAll();
  EXPECT_EQ(others.TakeDone(), (Done{{1, "errno 5"}, {2, "errno 5"}}));
  c.Close(opened);
  volume.Restart();
}

TEST_F(HeldReads, TheyAreDropped_TheirPlacesAreFreeAndNothingComes) {
  BeginThree();
  reads.Drop();
  volume.tlib().AnswerReads();
  ASSERT_TRUE(reads.Poll().ok());  // which refuses what it does not know
  EXPECT_EQ(reads.TakeDone(), Done{});
  for (int i = 0; i < 4; ++i) {
    reads.Begin(file, 0, kPage);
  }
  EXPECT_EQ(reads.TakeDone().size(), 4u);
}

// Somebody else asks the server for it.
TEST_F(HeldReads, ByMapsOnly_WithoutAMapTheServerIsNotAsked) {
  Mount c(volume);
  OpenFile* const opened = c.Open("f", O_RDWR | O_NOATIME);  // with a map
  LaneOfReads by_map(*c.fs, 4, kPage, /*by_map=*/true);
  OpenFile* const rewritten = b.Open("f", O_RDWR | O_TRUNC);  // takes the map back that Open had brought
  ASSERT_TRUE(b.Write(rewritten, 0, std::string(kPage, 'a')).ok());
  by_map.Begin(opened, 0, kPage);
  EXPECT_EQ(by_map.TakeDone(), (Done{{1, "errno 11"}}));
  EXPECT_EQ(c.Metric("fs_server_reads_total"), 0u);
  ASSERT_EQ(c.Read(opened, 0, 1), "a");  // brings a map
  by_map.Begin(opened, 0, kPage);
  ASSERT_EQ(by_map.under_way(), 1u);
  ASSERT_TRUE(b.Resize(b.InodeOf("f"), 0, rewritten).ok());  // it does not last
  volume.tlib().AnswerReads();
  by_map.AwaitAll();
  EXPECT_EQ(by_map.TakeDone(), (Done{{2, "errno 11"}}));
  EXPECT_EQ(c.Metric("fs_server_reads_total"), 1u);
  b.Close(rewritten);
  c.Close(opened);
}

TEST_F(HeldReads, ByMapsOnly_NoRoomIsNotWaitedFor) {
  Mount c(volume);
  OpenFile* const opened = c.Open("f", O_RDWR | O_NOATIME);  // with a map
  constexpr size_t kMore = tlib::kChannelCredits + 2;
  LaneOfReads by_map(*c.fs, kMore, kPage, /*by_map=*/true);
  ASSERT_EQ(c.Read(opened, 0, 1), "a");
  for (size_t i = 0; i < kMore; ++i) {
    by_map.Begin(opened, 0, kPage);
  }
  EXPECT_EQ(by_map.under_way(), tlib::kChannelCredits);
  EXPECT_EQ(by_map.TakeDone(), (Done{{kMore - 1, "errno 11"}, {kMore, "errno 11"}}));
  volume.tlib().AnswerReads();
  by_map.AwaitAll();
  c.Close(opened);
}

// The session is well, and nobody else would find out.
TEST_F(HeldReads, ByMapsOnly_TheLaneAloneIsBroken_ItGoesOnInAnotherSession) {
  Mount c(volume);
  OpenFile* const opened = c.Open("f", O_RDWR | O_NOATIME);  // with a map
  LaneOfReads by_map(*c.fs, 4, kPage, /*by_map=*/true);
  ASSERT_EQ(c.Read(opened, 0, 1), "a");
  volume.tlib().FailReads(ENOTCONN);
  by_map.Begin(opened, 0, kPage);
  volume.tlib().AnswerReads();
  by_map.AwaitAll();
  EXPECT_EQ(by_map.TakeDone(), (Done{{1, "errno 11"}}));
  ASSERT_TRUE(Eventually([&] { return c.Metric("link_reconnections_total") == 1; }));
  ASSERT_EQ(c.Read(opened, 0, 1), "a");
  by_map.Begin(opened, 0, kPage);
  EXPECT_EQ(by_map.TakeDone(), (Done{{2, std::string(kPage, 'a')}}));
  c.Close(opened);
}

TEST_F(HeldReads, ByMapsOnly_TheServerIsAway_NothingWaitsForIt) {
  Mount c(volume);
  OpenFile* const opened = c.Open("f", O_RDWR | O_NOATIME);  // with a map
  LaneOfReads by_map(*c.fs, 4, kPage, /*by_map=*/true);
  ASSERT_EQ(c.Read(opened, 0, 1), "a");
  by_map.Begin(opened, 0, kPage);
  ASSERT_EQ(by_map.under_way(), 1u);
  volume.Kill();
  by_map.AwaitAll();
  by_map.Begin(opened, 0, kPage);
  EXPECT_EQ(by_map.TakeDone(), (Done{{1, "errno 11"}, {2, "errno 11"}}));
  volume.Restart();
  volume.tlib().AnswerReads();
  ASSERT_EQ(c.Read(opened, 0, 1), "a") << "others wait";
  by_map.Begin(opened, 0, kPage);
  EXPECT_EQ(by_map.TakeDone(), (Done{{3, std::string(kPage, 'a')}})) << "the lane has come along";
  c.Close(opened);
}

// The lane has another buffer then.
TEST_F(HeldReads, AnotherCallIsGivenUp_TheyAreReadAgain) {
  BeginThree();
  const std::byte* const places = reads.lane().places().data();
  volume.tlib().GiveUp(kFsGetAttributes);
  EXPECT_EQ(a.fs->GetAttributes(reads.lane(), a.InodeOf("f")).status().code(), ETIMEDOUT);
  EXPECT_NE(reads.lane().places().data(), places);
  bool other = false;
  EXPECT_FALSE(reads.WaitWith(-1, 0, other)) << "they have to be begun again";
  ExpectThree(std::string(kPage, 'a'));
}

TEST_F(HeldReads, TheWaitIsInterrupted_TheyAreStillUnderWay) {
  BeginThree();
  volume.tlib().FailReads(EINTR);
  EXPECT_EQ(reads.Await().code(), EINTR);
  EXPECT_EQ(reads.under_way(), 3u);
  ExpectThree(std::string(kPage, 'a'));
  EXPECT_EQ(a.Metric("fs_server_reads_total"), 0u);
}

TEST_F(HeldReads, OneIsNotAnsweredInTime_TheOthersGoOn) {
  BeginThree();
  volume.tlib().FailReads(ETIMEDOUT);
  EXPECT_TRUE(reads.Await().ok());
  EXPECT_EQ(reads.TakeDone(), (Done{{1, "errno 110"}}));
  EXPECT_EQ(reads.under_way(), 2u);
  EXPECT_TRUE(reads.Poll().ok());
  volume.tlib().AnswerReads();
  reads.AwaitAll();
  EXPECT_EQ(reads.TakeDone(), (Done{{2, std::string(kPage, 'a')}, {3, std::string(kPage, 'a')}}));
  EXPECT_EQ(a.Metric("fs_server_reads_total"), 0u);
}

// They are not begun again, which could take as long as that for each.
TEST_F(HeldReads, NoneIsAnsweredInTime_TheyEndWithThat) {
  volume.SetCallTimeout(std::chrono::milliseconds(0));
  Mount c(volume);
  OpenFile* const opened = c.Open("f", O_RDWR | O_NOATIME);  // with a map
  LaneOfReads others(*c.fs, 3, kPage);
  for (uint64_t i = 0; i < 3; ++i) {
    others.Begin(opened, i * kPage, kPage);
  }
  volume.tlib().FailReads(ETIMEDOUT);
  others.AwaitAll();
  EXPECT_EQ(others.TakeDone(), (Done{{1, "errno 110"}, {2, "errno 110"}, {3, "errno 110"}}));
  volume.tlib().AnswerReads();
  EXPECT_EQ(c.Read(opened, 0, 1), "a");
  c.Close(opened);
}

// Its time to answer begins anew: it has just come back.
TEST_F(HeldReads, TheServerComesBack_TheyAreNotLate) {
  volume.SetCallTimeout(std::chrono::milliseconds(0));
  Mount c(volume);
  OpenFile* const opened = c.Open("f", O_RDWR | O_NOATIME);  // with a map
  LaneOfReads others(*c.fs, 1, kPage);
  others.Begin(opened, 0, kPage);
  ASSERT_EQ(others.under_way(), 1u);
  volume.KillAndRestart();
  volume.tlib().AnswerReads();
  others.AwaitAll();
  EXPECT_EQ(others.TakeDone(), (Done{{1, std::string(kPage, 'a')}}));
  c.Close(opened);
}

// The server may write anywhere in what it is given for a reply.
TEST(LaneWithPlaces, OtherRepliesStayOutOfThem) {
  MemoryVolume volume(uint64_t{16} << 20);
  Mount a(volume);
  const auto lane = a.fs->OpenLane(1 << 20);
  ASSERT_TRUE(lane.ok());
  const std::span<std::byte> places = (*lane)->places();
  std::fill(places.begin(), places.end(), std::byte{7});
  EXPECT_TRUE(a.fs->ReadDirectory(**lane, kRootInode, 0, 1 << 20, true).ok());
  EXPECT_TRUE(std::all_of(places.begin(), places.end(), [](std::byte b) { return b == std::byte{7}; }));
}

// Of one of them, and nobody knows of which.
TEST_F(HeldReads, AnErrorOfTheServer_EachIsReadByItself) {
  BeginThree();
  volume.tlib().FailReads(EIO);
  ExpectThree(std::string(kPage, 'a'));
  EXPECT_EQ(a.Metric("fs_server_reads_total"), 3u);
}

TEST_F(HeldReads, WithoutAMap_TheServerReads) {
  a.Close(file);
  ASSERT_TRUE(b.Resize(b.InodeOf("f"), kPage).ok());
  OpenFile* const opened = a.Open("f");
  ASSERT_TRUE(b.Resize(b.InodeOf("f"), 2 * kPage).ok());  // revokes it
  reads.Begin(opened, 0, 2 * kPage);
  EXPECT_EQ(reads.under_way(), 0u);
  EXPECT_EQ(reads.TakeDone(), (Done{{1, std::string(kPage, 'a') + std::string(kPage, '\0')}}));
  EXPECT_EQ(a.Metric("fs_server_reads_total"), 1u);
  a.Close(opened);
  file = a.Open("f");
}

TEST_F(HeldReads, WaitedForTogetherWithSomethingElse) {
  const UniqueFd event(eventfd(0, EFD_CLOEXEC));
  bool other = false;
  EXPECT_TRUE(reads.WaitWith(event.get(), 0, other)) << "nothing is under way";
  EXPECT_EQ(reads.readable(), 0);
  BeginThree();
  EXPECT_TRUE(reads.WaitWith(event.get(), 0, other));
  EXPECT_EQ(reads.readable(), 0);
  ASSERT_EQ(eventfd_write(event.get(), 1), 0);
  EXPECT_TRUE(reads.WaitWith(event.get(), 10'000, other));
  EXPECT_TRUE(other);
  EXPECT_EQ(reads.readable(), 1);
  volume.tlib().AnswerReads();
  EXPECT_FALSE(reads.WaitWith(-1, 10'000, other)) << "they have been read";
  EXPECT_TRUE(reads.Poll().ok());
  EXPECT_EQ(reads.under_way(), 0u);
}

// Somebody polls descriptors of its channel, which the link would close.
TEST(ArmedReads, TheServerIsLost_TheLaneIsInUse) {
  MemoryVolume volume(uint64_t{16} << 20);
  Mount a(volume);
  OpenFile* const file = a.Create("f");
  ASSERT_TRUE(a.Write(file, 0, "text").ok());
  volume.tlib().HoldReads();
  const auto idle = a.fs->OpenLane();
  LaneOfReads reads(*a.fs, 1, kPage);
  reads.Begin(file, 0, kPage);
  tlib::client::ReadsFds fds{};
  ASSERT_TRUE(a.fs->ArmReads(reads.lane(), fds));
  volume.KillAndRestart();
  EXPECT_TRUE(a.fs->StatFs(*a.lane, kRootInode).ok());  // finds the session lost, and waits for the next
  EXPECT_EQ(volume.tlib().detached(), 1u) << "the idle lane's only";
  a.fs->DisarmReads(reads.lane());
  volume.tlib().AnswerReads();
  reads.AwaitAll();
  EXPECT_EQ(reads.TakeDone(), (Done{{1, "text"}}));
  a.Close(file);
}

}  // namespace termfs::fs
