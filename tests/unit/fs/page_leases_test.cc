// SPDX-License-Identifier: Apache-2.0
//
// Leases of data: what kernels keep of files, and what changes do about it. See "Pages under a lease".
#include <fcntl.h>

#include <atomic>
#include <functional>
#include <map>
#include <thread>

#include "fs/client/known_pages.h"
#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {

using client::OpenFile;
using client::PageUse;
using std::chrono::seconds;

namespace {

constexpr uint64_t kCapacity = uint64_t{16} << 20;
constexpr int kWriter = O_RDWR;

// A kernel that tells a test when it is to drop pages.
class Told final : public client::KernelCache {
 public:
  bool InvalidateInode(uint64_t, uint64_t, uint64_t) override {
    ++drops;
    if (on_drop) {
      on_drop();
    }
    return true;
  }
  void InvalidateAttributes(uint64_t, std::chrono::steady_clock::time_point) override { ++attributes; }
  [[nodiscard]] bool InvalidateEntry(uint64_t, std::string_view) override { return true; }
  void ServerLost() override {}
  std::atomic<int> drops{0};
  std::atomic<int> attributes{0};
  std::function<void()> on_drop;  // on the client's thread; set before there is a client
};

// A kernel that is told of files that have become smaller.
class ToldOfCuts final : public client::KernelCache {
 public:
  bool InvalidateInode(uint64_t, uint64_t, uint64_t) override { return true; }
  void InvalidateAttributes(uint64_t, std::chrono::steady_clock::time_point) override {}
  [[nodiscard]] bool InvalidateEntry(uint64_t, std::string_view) override { return true; }
  void ServerLost() override {}
  void RefreshSize(uint64_t ino, uint64_t generation) override {
    last = {ino, generation};
    ++cuts;
    if (on_cut) {
      on_cut();
    }
  }
  std::pair<uint64_t, uint64_t> last;  // set before `cuts`
  std::atomic<int> cuts{0};
  std::function<void()> on_cut;  // on the client's thread; set before there is a client
};

// The page cache of one file's first bytes: a lock of the page is held while they are read, and while they are dropped.
class OnePage final : public client::KernelCache {
 public:
  bool InvalidateInode(uint64_t, uint64_t, uint64_t) override {
    MutexLock page(page_);
    cached_.reset();
    return true;
  }
  void InvalidateAttributes(uint64_t, std::chrono::steady_clock::time_point) override {}
  [[nodiscard]] bool InvalidateEntry(uint64_t, std::string_view) override { return true; }
  void ServerLost() override {}

  std::string Read(Mount& mount, OpenFile* file, size_t size) {
    if (mount.fs->DropsPages(file)) {  // as the front end does when the kernel asks for the attributes, before the page
      mount.fs->AwaitDropped(file);
    }
    MutexLock page(page_);
    if (cached_.has_value()) {
      ++hits;
    } else {
      EXPECT_TRUE(mount.CachePages(file).ok());
      cached_ = mount.Read(file, 0, size);
    }
    return *cached_;
  }
  uint64_t hits = 0;  // of its reader

 private:
  Mutex page_;
  std::optional<std::string> cached_ GUARDED_BY(page_);
};

std::string Numbered(uint64_t number) {
  std::string text = std::to_string(number);
  return std::string(8 - text.size(), '0') + text;
}

}  // namespace

TEST(PageLeases, Open_OfAReader_LetsTheKernelKeepPages) {
  MemoryVolume volume(kCapacity);
  Told kernel;
  Mount a(volume, &kernel);
  a.Close(a.Create("f"));
  OpenFile* reader = a.Open("f", O_RDONLY);
  EXPECT_EQ(a.fs->pages(reader), PageUse::kFresh);
  a.Close(reader);
  for (const int flags : {O_RDWR, O_WRONLY, O_RDONLY | O_DIRECT, O_RDONLY | O_TRUNC}) {
    OpenFile* other = a.Open("f", flags);
    EXPECT_EQ(a.fs->pages(other), PageUse::kNone) << flags;
    EXPECT_EQ(a.fs->MayBeMapped(other), flags == O_RDWR) << flags;
    a.Close(other);
  }
  Mount without(volume);
  reader = without.Open("f", O_RDONLY);
  EXPECT_EQ(without.fs->pages(reader), PageUse::kNone) << "it has no kernel";
  without.Close(reader);
}

TEST(PageLeases, Reopen_KeepsPagesUntilAnythingHasChanged) {
  MemoryVolume volume(kCapacity);
  Told kernel;
  Mount a(volume, &kernel);
  Mount b(volume);
  OpenFile* writer = b.Create("f");
  ASSERT_TRUE(b.Write(writer, 0, "old").ok());
  const auto use = [&] {
    OpenFile* file = a.Open("f", O_RDONLY);
    const PageUse found = a.fs->pages(file);
    a.Close(file);
    return found;
  };
  EXPECT_EQ(use(), PageUse::kFresh);
  EXPECT_EQ(use(), PageUse::kKept);
  ASSERT_TRUE(b.Write(writer, 0, "new").ok());
  EXPECT_EQ(use(), PageUse::kFresh);
  EXPECT_EQ(use(), PageUse::kKept);
  const Attributes before = b.Stat(b.InodeOf("f"));
  ASSERT_TRUE(b.Write(writer, 0, "odd").ok());
  client::SetAttributes back;
  back.mtime = before.mtime;
  ASSERT_TRUE(b.fs->Set(*b.lane, before.ino, back, nullptr).ok());
  EXPECT_EQ(b.Stat(before.ino).mtime, before.mtime);
  EXPECT_EQ(use(), PageUse::kFresh) << "an mtime that was set back hides nothing";
  EXPECT_EQ(kernel.drops, 2) << "it was open still, each time that the file was changed";
  b.Close(writer);
}

TEST(PageLeases, ACut_IsShownToReadersBeforeItReturns) {
  MemoryVolume volume(kCapacity);
  ToldOfCuts kernel;
  ToldOfCuts kernel_of_writer;
  Mount a(volume, &kernel);
  Mount b(volume, &kernel_of_writer);
  OpenFile* writer = b.Create("f");
  ASSERT_TRUE(b.Write(writer, 0, "12345678").ok());
  const Attributes file = b.Stat(b.InodeOf("f"));
  const auto resize = [&](uint64_t size) {
    client::SetAttributes set;
    set.size = size;
    ASSERT_TRUE(b.fs->Set(*b.lane, file.ino, set, writer).ok());
  };
  resize(7);
  EXPECT_EQ(kernel.cuts, 0) << "it has nothing of the file";
  OpenFile* reader = a.Open("f", O_RDONLY);
  ASSERT_EQ(a.fs->pages(reader), PageUse::kFresh);
  resize(5);
  EXPECT_EQ(kernel.cuts, 1);
  EXPECT_EQ(kernel.last, std::make_pair(file.ino, file.generation));
  resize(3);
  EXPECT_EQ(kernel.cuts, 2) << "also when it has no pages any more";
  resize(3);
  resize(6);
  ASSERT_TRUE(b.Write(writer, 0, "123456789").ok());
  EXPECT_EQ(kernel.cuts, 2) << "the size was no smaller";
  b.Close(b.Open("f", O_RDWR | O_TRUNC));
  EXPECT_EQ(kernel.cuts, 3);
  EXPECT_EQ(kernel_of_writer.cuts, 0) << "its kernel knows";
  a.Close(reader);
  b.Close(writer);
}

TEST(PageLeases, ACut_KeepsOtherChangesOutUntilItIsShown) {
  MemoryVolume volume(kCapacity);
  std::atomic<bool> may_go_on{false};
  ToldOfCuts kernel;
  kernel.on_cut = [&] { may_go_on.wait(false); };
  Mount a(volume, &kernel);
  Mount b(volume);
  Mount c(volume);
  OpenFile* first = b.Create("f");
  ASSERT_TRUE(b.Write(first, 0, "12345678").ok());
  OpenFile* reader = a.Open("f", O_RDONLY);
  OpenFile* own = a.Open("f", kWriter);
  OpenFile* second = c.Open("f", kWriter);
  std::thread cuts([&] {
    client::SetAttributes set;
    set.size = 2;
    EXPECT_TRUE(b.fs->Set(*b.lane, b.InodeOf("f"), set, first).ok());
  });
  while (kernel.cuts == 0) {
    std::this_thread::yield();
  }
  std::atomic<bool> written{false};
  std::thread writes([&] {
    EXPECT_TRUE(c.Write(second, 0, "abc").ok());
    written = true;
  });
  EXPECT_TRUE(a.Write(own, 0, "x").ok()) << "its kernel may wait for that before it takes the smaller size";
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(written);
  may_go_on = true;
  may_go_on.notify_all();
  cuts.join();
  writes.join();
  EXPECT_EQ(a.Read(own, 0, 10), "abc");
  a.Close(reader);
  a.Close(own);
  b.Close(first);
  c.Close(second);
}

// It may have been cut off by a server that ended before it said so.
TEST(PageLeases, AReaderThatIsBack_IsShownTheSizeBeforeTheNextChange) {
  MemoryVolume volume(kCapacity);
  ToldOfCuts kernel;
  Mount a(volume, &kernel);
  Mount b(volume);
  OpenFile* writer = b.Create("f");
  ASSERT_TRUE(b.Write(writer, 0, "12345678").ok());
  OpenFile* reader = a.Open("f", O_RDONLY);
  ASSERT_EQ(a.fs->pages(reader), PageUse::kFresh);
  volume.KillAndRestart();
  ASSERT_EQ(a.Read(reader, 0, 8), "12345678");
  EXPECT_EQ(kernel.cuts, 0) << "nothing has changed";
  ASSERT_TRUE(b.Write(writer, 8, "9").ok());
  EXPECT_EQ(kernel.cuts, 1);
  const Attributes file = b.Stat(b.InodeOf("f"));
  EXPECT_EQ(kernel.last, std::make_pair(file.ino, file.generation));
  ASSERT_TRUE(b.Write(writer, 9, "0").ok());
  EXPECT_EQ(kernel.cuts, 1) << "once";
  a.Close(reader);
  b.Close(writer);
}

TEST(PageLeases, Changes_NeverLeaveTheSameTimeOfChange) {
  MemoryVolume volume(kCapacity);
  Mount a(volume);
  OpenFile* file = a.Create("f");
  int64_t last = 0;
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(a.Write(file, static_cast<uint64_t>(i % 2), "x").ok());
    const int64_t ctime = a.Stat(a.InodeOf("f")).ctime;
    EXPECT_GT(ctime, last);
    last = ctime;
  }
  a.Close(file);
}

TEST(PageLeases, AChange_ComesAfterThePagesAreGone) {
  MemoryVolume volume(kCapacity);
  Mount a(volume);
  Mount looking(volume);
  OpenFile* writer = a.Create("f");
  ASSERT_TRUE(a.Write(writer, 0, "before").ok());
  OpenFile* look = looking.Open("f", kWriter);
  std::string seen;
  Told kernel;
  kernel.on_drop = [&] { seen = looking.Read(look, 0, 100); };
  Mount b(volume, &kernel);
  const auto change = [&](const std::string& had, const std::function<void()>& how) {
    OpenFile* reader = b.Open("f", O_RDONLY);
    ASSERT_TRUE(b.CachePages(reader).ok());
    EXPECT_EQ(b.Read(reader, 0, 100), had);
    seen.clear();
    const int drops = kernel.drops;
    how();
    EXPECT_EQ(seen, had) << "nobody sees what is new while another may still see what is old";
    EXPECT_EQ(kernel.drops, drops + 1);
    b.Close(reader);
  };
  change("before", [&] { ASSERT_TRUE(a.Write(writer, 0, "AFTER!").ok()); });
  change("AFTER!", [&] { ASSERT_TRUE(a.Write(writer, 6, "more").ok()); });
  change("AFTER!more", [&] { ASSERT_TRUE(a.Resize(a.InodeOf("f"), 3, writer).ok()); });
  change("AFT", [&] { a.Close(a.Open("f", O_RDONLY | O_TRUNC)); });
  looking.Close(look);
  a.Close(writer);
}

TEST(PageLeases, WhoBeginsToReadWhilePagesAreDropped_CanWait) {
  MemoryVolume volume(kCapacity);
  Mount a(volume);
  OpenFile* writer = a.Create("f");
  OpenFile* reader = nullptr;
  std::atomic<bool> dropped{false};
  std::atomic<bool> early{false};
  std::thread waiting;
  Told kernel;
  Mount* its_mount = nullptr;
  kernel.on_drop = [&] {
    EXPECT_TRUE(its_mount->fs->DropsPages(reader));
    waiting = std::thread([&] {
      its_mount->fs->AwaitDropped(reader);
      early = !dropped;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    dropped = true;
  };
  Mount b(volume, &kernel);
  its_mount = &b;
  reader = b.Open("f", O_RDONLY);
  EXPECT_FALSE(b.fs->DropsPages(reader));
  b.fs->AwaitDropped(reader);  // at once
  ASSERT_TRUE(a.Write(writer, 0, "x").ok());
  ASSERT_TRUE(waiting.joinable());
  waiting.join();
  EXPECT_FALSE(early);
  EXPECT_FALSE(b.fs->DropsPages(reader));
  b.Close(reader);
  a.Close(writer);
}

// As a read of the kernel's does that finds its page dropped: it reads it once more, while the drop is not known to be
// over. If it had the lease at once, so it would the next time, and no change would ever find the page dropped.
TEST(PageLeases, WhoReadsAPageAgainAsSoonAsItIsDropped_WaitsForTheChange) {
  MemoryVolume volume(kCapacity);
  Mount a(volume);
  OpenFile* writer = a.Create("f");
  std::vector<std::thread> reads;
  Told kernel;
  Mount* its_mount = nullptr;
  OpenFile* reader = nullptr;
  kernel.on_drop = [&] {
    std::atomic<bool> begun{false};
    reads.emplace_back([&its_mount, &reader, &begun] {
      const auto lane = its_mount->fs->OpenLane();
      begun = true;
      EXPECT_TRUE(lane.ok() && its_mount->fs->CachePages(**lane, reader).ok());
    });
    while (!begun) {
      std::this_thread::yield();
    }
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  };
  Mount b(volume, &kernel);
  its_mount = &b;
  reader = b.Open("f", O_RDONLY);
  ASSERT_TRUE(b.CachePages(reader).ok());
  ASSERT_TRUE(a.Write(writer, 0, "x").ok());
  EXPECT_LT(kernel.drops, 100) << "two or three where nothing else runs";
  for (std::thread& read : reads) {
    read.join();
  }
  b.Close(reader);
  a.Close(writer);
}

// They would have to be called back before the change, and those who ask all the time would hold it up for ever.
TEST(PageLeases, WhileAChangeWaits_AttributesAreGivenWithoutATime) {
  MemoryVolume volume(kCapacity);
  Mount a(volume);
  OpenFile* writer = a.Create("f");
  const uint64_t ino = a.InodeOf("f");
  Told others;
  Mount other(volume, &others);
  other.Stat(ino);
  EXPECT_GT(other.lane->keep(nullptr).attributes, 0.0);
  Told kernel;
  double given = -1;
  kernel.on_drop = [&] {
    other.Stat(ino);
    given = other.lane->keep(nullptr).attributes;
  };
  Mount b(volume, &kernel);
  OpenFile* reader = b.Open("f", O_RDONLY);
  ASSERT_TRUE(a.Write(writer, 0, "x").ok());
  EXPECT_EQ(given, 0.0);
  other.Stat(ino);
  EXPECT_GT(other.lane->keep(nullptr).attributes, 0.0) << "once it is through";
  b.Close(reader);
  a.Close(writer);
}

TEST(PageLeases, WhoHasDropped_IsNotAskedAgain) {
  MemoryVolume volume(kCapacity);
  Told kernel;
  Mount a(volume);
  Mount b(volume, &kernel);
  OpenFile* writer = a.Create("f");
  OpenFile* reader = b.Open("f", O_RDONLY);
  ASSERT_TRUE(a.Write(writer, 0, "1").ok());
  EXPECT_EQ(kernel.drops, 1);
  ASSERT_TRUE(a.Write(writer, 0, "2").ok());
  EXPECT_EQ(kernel.drops, 1);
  ASSERT_TRUE(b.CachePages(reader).ok());  // its kernel reads again
  ASSERT_TRUE(a.Write(writer, 0, "3").ok());
  EXPECT_EQ(kernel.drops, 2);
  b.Close(reader);
  ASSERT_TRUE(a.Write(writer, 0, "4").ok());
  EXPECT_EQ(kernel.drops, 2);
  a.Close(writer);
}

TEST(PageLeases, LostSession_LosesThem) {
  MemoryVolume volume(kCapacity);
  Told kernel;
  Mount a(volume, &kernel);
  a.Close(a.Create("f"));
  a.Close(a.Open("f", O_RDONLY));
  OpenFile* reader = a.Open("f", O_RDONLY);
  EXPECT_EQ(a.fs->pages(reader), PageUse::kKept);
  volume.KillAndRestart();
  ASSERT_TRUE(a.fs->StatFs(*a.lane, kRootInode).ok());  // notices
  Mount b(volume);
  OpenFile* writer = b.Open("f", kWriter);
  ASSERT_TRUE(b.Write(writer, 0, "x").ok());
  EXPECT_EQ(a.Read(reader, 0, 10), "x");
  a.Close(reader);
  reader = a.Open("f", O_RDONLY);
  EXPECT_EQ(a.fs->pages(reader), PageUse::kFresh);
  a.Close(reader);
  b.Close(writer);
}

// It may be held up, and is not waited for for ever.
TEST(PageLeases, AKernelThatIsToDropPages_HasDroppedAttributesBefore) {
  MemoryVolume volume(kCapacity);
  Mount a(volume);
  OpenFile* writer = a.Create("f");
  Told kernel;
  int before = 0;
  kernel.on_drop = [&] { before = kernel.attributes; };
  Mount b(volume, &kernel);
  OpenFile* reader = b.Open("f", O_RDONLY);
  ASSERT_TRUE(b.CachePages(reader).ok());
  ASSERT_TRUE(a.Write(writer, 0, "x").ok());
  EXPECT_EQ(kernel.drops, 1);
  EXPECT_EQ(before, 1);
  b.Close(reader);
  a.Close(writer);
}

TEST(PageLeases, AfterARestart_WhoReadsWhileItsPagesAreDroppedWaitsForNobody) {
  MemoryVolume volume(kCapacity);
  Mount a(volume);
  OpenFile* writer = a.Create("f");
  Told kernel;
  Mount* its_mount = nullptr;
  OpenFile* reader = nullptr;
  std::atomic<bool> reads{false};
  std::atomic<int> read{0};
  kernel.on_drop = [&] {
    if (reads) {  // its kernel waits for the page that is being read
      EXPECT_TRUE(its_mount->CachePages(reader).ok());
      ++read;
    }
  };
  Mount b(volume, &kernel);
  its_mount = &b;
  reader = b.Open("f", O_RDONLY);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(b.CachePages(reader).ok());
    ASSERT_TRUE(a.Write(writer, 0, "x").ok());
  }
  volume.KillAndRestart();
  ASSERT_TRUE(a.fs->StatFs(*a.lane, kRootInode).ok());
  ASSERT_TRUE(b.CachePages(reader).ok());
  reads = true;
  ASSERT_TRUE(a.Write(writer, 0, "y").ok());
  reads = false;
  EXPECT_GE(read, 1);
  EXPECT_EQ(b.Metric("link_reconnections_total"), 1u) << "it was expelled";
  b.Close(reader);
  a.Close(writer);
}

// What one has read, nobody reads an older state of later: also not who reads from his kernel's cache.
TEST(PageLeases, ReadsOfSeveralMounts_NeverGoBack) {
  MemoryVolume volume(kCapacity);
  Mount a(volume);
  OpenFile* writer = a.Create("f");
  ASSERT_TRUE(a.Write(writer, 0, Numbered(0)).ok());
  std::atomic<bool> done{false};
  std::thread writes([&] {
    for (uint64_t i = 1; i <= 2000; ++i) {
      EXPECT_TRUE(a.Write(writer, 0, Numbered(i)).ok());
    }
    done = true;
  });
  OnePage kernel;
  Mount b(volume, &kernel);
  Mount c(volume);
  OpenFile* cached = b.Open("f", O_RDONLY);
  OpenFile* direct = c.Open("f", kWriter);
  std::string last = Numbered(0);
  while (!done) {
    for (const bool by_cache : {false, true, true}) {
      std::string seen = by_cache ? kernel.Read(b, cached, 8) : c.Read(direct, 0, 8);
      EXPECT_GE(seen, last) << (by_cache ? "cached" : "direct");
      last = std::move(seen);
    }
  }
  writes.join();
  EXPECT_EQ(kernel.Read(b, cached, 8), Numbered(2000));
  EXPECT_GT(kernel.hits, 0u);
  b.Close(cached);
  c.Close(direct);
  a.Close(writer);
}

TEST(KnownPages, Opened_ComparesWithTheOpenBefore) {
  client::KnownPages pages;
  EXPECT_FALSE(pages.Opened(7, 100, 1));
  EXPECT_TRUE(pages.Opened(7, 100, 1));
  EXPECT_FALSE(pages.Opened(7, 101, 1));
  EXPECT_TRUE(pages.Opened(7, 101, 1));
  EXPECT_FALSE(pages.Opened(7, 101, 2)) << "another session";
  EXPECT_FALSE(pages.Opened(8, 101, 2)) << "another file";
  pages.Dropped(7, {});
  EXPECT_FALSE(pages.Opened(7, 101, 2));
}

TEST(KnownPages, Contended_AfterManyDropsUntilTheyAreOver) {
  client::KnownPages pages;
  client::KnownPages::TimePoint now{seconds(1000)};
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(pages.Contended(7, now)) << i;
    pages.Dropped(7, now += seconds(1));
  }
  EXPECT_TRUE(pages.Contended(7, now + seconds(9)));
  EXPECT_FALSE(pages.Contended(7, now + seconds(10)));
  pages.Dropped(7, now + seconds(11));
  EXPECT_FALSE(pages.Contended(7, now + seconds(11))) << "the first of new ones";
}

TEST(KnownPages, OldOnesAreForgotten) {
  client::KnownPages pages;
  for (uint64_t ino = 0; ino < 100'000; ++ino) {
    pages.Opened(ino, 1, 1);
  }
  EXPECT_FALSE(pages.Opened(0, 1, 1));
  EXPECT_TRUE(pages.Opened(99'999, 1, 1));
}

}  // namespace termfs::fs
