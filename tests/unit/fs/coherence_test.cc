// SPDX-License-Identifier: Apache-2.0
//
// Clients that do not answer, and freed space.
#include "fs/server/coherence.h"

#include <fcntl.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "base/page.h"
#include "fs/proto/opcodes.h"
#include "tests/unit/eventually.h"
#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {

using client::OpenFile;

namespace {
constexpr server::CoherenceTimeouts kShort{.revoke = std::chrono::milliseconds(50),
                                           .invalidate = std::chrono::milliseconds(50),
                                           .expel = std::chrono::milliseconds(10000)};
}  // namespace

TEST(Coherence, Revoke_ExpelsWhoDoesNotAnswer) {
  MemoryVolume volume(uint64_t{16} << 20, kShort);
  Mount a(volume);
  Mount b(volume);
  OpenFile* fa = a.Create("f");
  ASSERT_TRUE(a.Write(fa, 0, std::string(100000, 'x')).ok());
  OpenFile* fb = b.Open("f");
  EXPECT_EQ(b.Read(fb, 0, 4), "xxxx");
  volume.tlib().Mute(volume.tlib().last_session());
  ASSERT_TRUE(a.Resize(a.InodeOf("f"), 0, fa).ok());
  EXPECT_EQ(b.Read(fb, 0, 4), "") << "it has come back, with nothing cached";
  EXPECT_EQ(b.Metric("link_reconnections_total"), 1u);
  EXPECT_TRUE(a.Write(fa, 0, "on").ok());
  a.Close(fa);
  b.Close(fb);
}

TEST(Coherence, Invalidate_ExpelsWhoDoesNotAnswer) {
  MemoryVolume volume(uint64_t{16} << 20, kShort);
  SilentCache cache;
  Mount a(volume);
  Mount b(volume, &cache);
  OpenFile* fa = a.Create("f");
  ASSERT_TRUE(a.Write(fa, 0, "1234").ok());
  OpenFile* fb = b.Open("f");
  ASSERT_TRUE(b.CachePages(fb).ok());
  volume.tlib().Mute(volume.tlib().last_session());
  ASSERT_TRUE(a.Write(fa, 0, "5678").ok());
  EXPECT_EQ(b.Read(fb, 0, 4), "5678");
  EXPECT_EQ(b.Metric("link_reconnections_total"), 1u);
  a.Close(fa);
  b.Close(fb);
}

// The growth is this mount's own, so its map is not revoked, and the reply that says so is still on its way.
TEST(Coherence, BesideAWriteThatHasNotReturned_OthersWritesThatHaveAreRead) {
  for (const bool hole : {false, true}) {  // which the write fills; else it makes the file longer
    MemoryVolume volume(uint64_t{16} << 20);
    Mount a(volume);
    Mount b(volume);
    OpenFile* const fa = a.Create("f");
    if (hole) {
      ASSERT_TRUE(a.Resize(a.InodeOf("f"), 2 * kPageSize, fa).ok());
    }
    OpenFile* const fb = b.Open("f");
    const auto lane = a.fs->OpenLane();
    ASSERT_TRUE(lane.ok());
    const auto read = [&] {
      const auto data = a.fs->Read(**lane, fa, 10, 5);
      EXPECT_TRUE(data.ok()) << data.status().ToString();
      return std::string(reinterpret_cast<const char*>(data->data()), data->size());
    };
    EXPECT_EQ(read(), hole ? std::string(5, '\0') : "") << "which brings the map";
    std::string seen;
    volume.tlib().DelayReplyOf(kFsWrite, [&] {
      EXPECT_TRUE(b.Write(fb, 10, "other").ok());
      seen = read();
    });
    EXPECT_TRUE(a.Write(fa, 0, std::string(100, 'x')).ok());
    EXPECT_EQ(seen, "other");
    a.Close(fa);
    b.Close(fb);
  }
}

TEST(Coherence, AfterAWriteThatFailed_OthersWritesAreRead) {
  MemoryVolume volume(uint64_t{16} << 20);
  Mount a(volume);
  Mount b(volume);
  OpenFile* const fa = a.Create("f");
  ASSERT_TRUE(a.Resize(a.InodeOf("f"), 2 * kPageSize, fa).ok());
  OpenFile* const fb = b.Open("f");
  EXPECT_EQ(a.Read(fa, 10, 5), std::string(5, '\0')) << "which brings a map with a hole";
  volume.tlib().FailWriteAfter(0);
  EXPECT_EQ(a.Write(fa, 0, std::string(100, 'x')).code(), EIO);
  EXPECT_TRUE(b.Write(fb, 10, "other").ok());
  EXPECT_EQ(a.Read(fa, 10, 5), "other");
  a.Close(fa);
  b.Close(fb);
}

// Its map has a hole where there is a page now. What it does not give up it has until its session has ended, and
// nobody's change of that page returns before.
TEST(Coherence, AfterAWriteThatFailed_AMapThatIsNotGivenUpIsWaitedFor) {
  MemoryVolume volume(uint64_t{16} << 20, kShort);
  Mount a(volume);
  const uint64_t its_session = volume.tlib().last_session();
  Mount b(volume);
  OpenFile* const fa = a.Create("f");
  ASSERT_TRUE(a.Resize(a.InodeOf("f"), 2 * kPageSize, fa).ok());
  OpenFile* const from = a.Create("from");
  OpenFile* const to = a.Create("to");
  ASSERT_TRUE(a.Write(from, 0, "bytes").ok());
  OpenFile* const fb = b.Open("f");
  EXPECT_EQ(a.Read(fa, 10, 5), std::string(5, '\0')) << "which brings the map";
  const auto lane = a.fs->OpenLane();
  ASSERT_TRUE(lane.ok());
  volume.tlib().HoldServerReads(true);  // a request that is under way, and the session lasts as long
  auto copied =
      std::async(std::launch::async, [&] { return a.fs->Copy(**lane, {.from = from, .to = to, .length = 5}); });
  EXPECT_TRUE(Eventually([&] { return volume.tlib().held_server_reads() == 1; }));
  volume.tlib().Mute(its_session);
  volume.tlib().FailWriteAfter(0);
  auto fails = std::async(std::launch::async, [&] { return a.Write(fa, 0, std::string(100, 'x')); });
  EXPECT_TRUE(Eventually([&] { return volume.tlib().IsLost(its_session); }));
  auto written = std::async(std::launch::async, [&] { return b.Write(fb, 10, "other"); });
  EXPECT_EQ(written.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  EXPECT_FALSE(volume.tlib().HasEnded(its_session)) << "or it shows nothing";
  volume.tlib().HoldServerReads(false);
  EXPECT_TRUE(written.get().ok());
  EXPECT_TRUE(fails.get().ok()) << "it was carried out anew in its next session";
  EXPECT_TRUE(copied.get().ok());
  const auto began = std::chrono::steady_clock::now();
  EXPECT_TRUE(b.Write(fb, 10, "later").ok());
  EXPECT_LT(std::chrono::steady_clock::now() - began, kShort.expel);
  EXPECT_EQ(a.Read(fa, 10, 5), "later");
  for (OpenFile* const file : {fa, from, to}) {
    a.Close(file);
  }
  b.Close(fb);
}

TEST(Coherence, ACut_ExpelsWhoDoesNotAnswer) {
  MemoryVolume volume(uint64_t{16} << 20, kShort);
  SilentCache cache;
  Mount a(volume);
  Mount b(volume, &cache);
  OpenFile* fa = a.Create("f");
  OpenFile* fb = b.Open("f", O_RDONLY);
  ASSERT_TRUE(a.Write(fa, 0, "1234").ok());  // from here on it has neither pages nor a map
  volume.tlib().Mute(volume.tlib().last_session());
  ASSERT_TRUE(a.Resize(a.InodeOf("f"), 3, fa).ok());
  EXPECT_EQ(b.Read(fb, 0, 4), "123");
  EXPECT_EQ(b.Metric("link_reconnections_total"), 1u) << "or each cut would wait for it";
  a.Close(fa);
  b.Close(fb);
}

// A reader there may learn of the new size first, and would be shown the zeros behind the old end.
TEST(Coherence, WhoMakesAFileLarger_DropsThePagesOfItsOwnKernelBefore) {
  class SeenCache final : public SilentCache {
   public:
    bool InvalidateInode(uint64_t, uint64_t, uint64_t) override { return ++dropped > 0; }
    std::atomic<int> dropped{0};
  };
  MemoryVolume volume(uint64_t{16} << 20);
  SeenCache cache;
  Mount a(volume, &cache);
  OpenFile* const file = a.Create("f");
  ASSERT_TRUE(a.Write(file, 0, "12345").ok());
  EXPECT_EQ(cache.dropped, 0);
  OpenFile* const reader = a.Open("f", O_RDONLY);
  for (int round = 0; round < 3; round++) {
    ASSERT_TRUE(a.CachePages(reader).ok());
    const int before = cache.dropped;
    ASSERT_TRUE(a.Write(file, 5, "6" + std::string(static_cast<size_t>(round), 'x')).ok());
    EXPECT_EQ(cache.dropped, before + 1) << round;
  }
  const int after = cache.dropped;
  ASSERT_TRUE(a.Write(file, 20, "no reader has asked since").ok());
  EXPECT_EQ(cache.dropped, after);
  a.Close(reader);
  a.Close(file);
}

// A read there could have begun with the size of before, and would show bytes of the append up to that.
TEST(Coherence, WhileAKernelIsToldOfACut_ItsOwnMountsAppendsWait) {
  class SlowCache final : public SilentCache {
   public:
    void RefreshSize(uint64_t, uint64_t) override {
      asked = true;
      EXPECT_TRUE(Eventually([&] { return answers.load(); }));
    }
    std::atomic<bool> asked{false};
    std::atomic<bool> answers{false};
  };
  MemoryVolume volume(uint64_t{16} << 20);
  SlowCache cache;
  Mount a(volume);
  Mount b(volume, &cache);
  OpenFile* const cuts = a.Create("f");
  ASSERT_TRUE(a.Write(cuts, 0, "12345").ok());
  OpenFile* const appends = b.Open("f", O_RDWR);
  OpenFile* const reader = b.Open("f", O_RDONLY);
  ASSERT_TRUE(b.CachePages(reader).ok());
  auto cut = std::async(std::launch::async, [&] { return a.Resize(a.InodeOf("f"), 0, cuts).ok(); });
  ASSERT_TRUE(Eventually([&] { return cache.asked.load(); }));
  auto lane = b.fs->OpenLane().value();
  std::atomic<bool> appended{false};
  auto append = std::async(std::launch::async, [&] {
    const bool written = b.Write(appends, 0, "new one").ok();
    appended = true;
    return written;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(appended);
  // Its kernel waits for what its readers ask before it answers.
  const Status leased = b.fs->CachePages(*lane, reader);
  EXPECT_TRUE(leased.ok()) << leased.ToString();
  EXPECT_FALSE(appended);
  cache.answers = true;
  EXPECT_TRUE(cut.get());
  EXPECT_TRUE(append.get());
  EXPECT_EQ(a.Read(cuts, 0, 10), "new one");
  b.Close(reader);
  b.Close(appends);
  a.Close(cuts);
}

// Its kernel may show what it has until its attributes end, and nobody sees older bytes than somebody has seen before.
TEST(Coherence, WhoIsGone_ChangesWaitForWhatItsKernelMayShow) {
  constexpr server::CoherenceTimeouts kLease{.invalidate = std::chrono::milliseconds(50),
                                             .recall = std::chrono::milliseconds(50),
                                             .lease = std::chrono::milliseconds(900),
                                             .drift = std::chrono::milliseconds(100)};
  for (const bool expelled : {true, false}) {
    MemoryVolume volume(uint64_t{16} << 20, kLease);
    SilentCache cache;
    Mount a(volume);
    OpenFile* const writer = a.Create("f");
    ASSERT_TRUE(a.Write(writer, 0, "old").ok());
    Mount c(volume);
    OpenFile* const look = c.Open("f", O_RDWR | O_NOATIME);  // else its reads wait, too
    Mount b(volume, &cache);
    OpenFile* const reader = b.Open("f", O_RDONLY);
    ASSERT_TRUE(b.CachePages(reader).ok());
    const auto granted = std::chrono::steady_clock::now();
    b.Stat(b.InodeOf("f"));
    EXPECT_GT(b.lane->keep(nullptr).attributes, 0.0);
    if (expelled) {
      volume.tlib().Mute(volume.tlib().last_session());
    } else {
      b.fs->Abandon("it is stopped");
    }
    std::atomic<bool> done{false};
    std::thread writes([&] {
      EXPECT_TRUE(a.Write(writer, 0, "new").ok());
      done = true;
    });
    while (!done && c.Read(look, 0, 3) == "old") {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_GE(std::chrono::steady_clock::now() - granted, kLease.lease + kLease.drift) << expelled;
    writes.join();
    EXPECT_EQ(c.Read(look, 0, 3), "new");
    b.Close(reader);
    c.Close(look);
    a.Close(writer);
  }
}

TEST(Coherence, FreedPages_AreZeroBeforeTheyAreFree) {
  MemoryVolume volume(uint64_t{16} << 20);
  Mount a(volume);
  OpenFile* file = a.Create("f");
  ASSERT_TRUE(a.Write(file, 0, std::string(1 << 20, 'x')).ok());
  const auto extents = volume.names().GetExtents(a.InodeOf("f"), 0, 1, 1);
  ASSERT_TRUE(extents.ok() && !extents->empty());
  const PageIndex page = extents->front().region_page;
  EXPECT_FALSE(volume.tlib().PageIsZero(page));
  a.Close(file);
  ASSERT_TRUE(a.Remove("f").ok());
  EXPECT_TRUE(Eventually([&] { return volume.names().StatFs().free_pages == 4096; }));
  EXPECT_TRUE(volume.tlib().PageIsZero(page));
}

TEST(Coherence, FreedPages_AreFoundInAnyOrder) {
  MemoryVolume volume(uint64_t{16} << 20);
  Mount a(volume);
  const std::vector<std::string> names = {"a", "b", "c", "d"};
  for (const std::string& name : names) {
    OpenFile* file = a.Create(name);
    ASSERT_TRUE(a.Write(file, 0, std::string(40000, 'x')).ok());
    a.Close(file);
  }
  uint64_t free = 4096 - 4 * 10;
  for (const size_t next : {2, 0, 3, 1}) {
    ASSERT_TRUE(a.Remove(names[next]).ok());
    free += 10;
    EXPECT_TRUE(Eventually([&] { return volume.names().StatFs().free_pages == free; })) << names[next];
  }
}

TEST(Coherence, FailedGrowth_LeavesZerosBehindTheEnd) {
  MemoryVolume volume(uint64_t{16} << 20);
  Mount a(volume);
  OpenFile* file = a.Create("f");
  ASSERT_TRUE(a.Write(file, 0, "0123456789").ok());
  volume.tlib().FailWriteAfter(2);
  EXPECT_EQ(a.Write(file, 10, std::string(12000, 'x')).code(), EIO);
  EXPECT_EQ(a.Stat(a.InodeOf("f")).size, 10u);
  ASSERT_TRUE(a.Resize(a.InodeOf("f"), 9000, file).ok());
  EXPECT_EQ(a.Read(file, 0, 10000), "0123456789" + std::string(8990, '\0'));
  a.Close(file);
}

TEST(Coherence, FailedCopy_LeavesZerosBehindTheEnd) {
  MemoryVolume volume(uint64_t{16} << 20);
  Mount a(volume);
  OpenFile* from = a.Create("from");
  OpenFile* file = a.Create("f");
  ASSERT_TRUE(a.Write(from, 0, std::string(12000, 'x')).ok());
  ASSERT_TRUE(a.Write(file, 0, "0123456789").ok());
  volume.tlib().FailWriteAfter(2);
  const client::FileCopy copy{.from = from, .from_offset = 0, .to = file, .to_offset = 10, .length = 12000};
  EXPECT_EQ(a.fs->Copy(*a.lane, copy).status().code(), EIO);
  EXPECT_EQ(a.Stat(a.InodeOf("f")).size, 10u);
  ASSERT_TRUE(a.Resize(a.InodeOf("f"), 9000, file).ok());
  EXPECT_EQ(a.Read(file, 0, 10000), "0123456789" + std::string(8990, '\0'));
  EXPECT_EQ(*a.fs->Copy(*a.lane, copy), 12000u);
  EXPECT_EQ(a.Read(file, 0, 20000), "0123456789" + std::string(12000, 'x'));
  a.Close(from);
  a.Close(file);
}

TEST(Coherence, DeadClient_LosesItsFiles) {
  MemoryVolume volume(uint64_t{16} << 20, kShort);
  Mount a(volume);
  {
    Mount b(volume);
    OpenFile* file = b.Create("f");
    ASSERT_TRUE(b.Write(file, 0, std::string(1 << 20, 'x')).ok());
    ASSERT_TRUE(a.Remove("f").ok());
    EXPECT_LT(volume.names().StatFs().free_pages, 4096u);
    volume.tlib().Expel({volume.tlib().last_session()}, "as if it had died");
    EXPECT_TRUE(Eventually([&] { return volume.names().StatFs().free_pages == 4096; }));
    b.Close(file);
  }
  EXPECT_TRUE(a.fs->StatFs(*a.lane, kRootInode).ok());
}

}  // namespace termfs::fs
