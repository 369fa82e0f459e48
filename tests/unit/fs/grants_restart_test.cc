// SPDX-License-Identifier: Apache-2.0
//
// What was granted, when the session or the server that granted it is gone.
#include <fcntl.h>

#include <atomic>
#include <set>
#include <thread>

#include "base/mutex.h"
#include "fs/client/kept_by_kernel.h"
#include "fs/proto/opcodes.h"
#include "tests/unit/eventually.h"
#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {

using client::KeptByKernel;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

namespace {

constexpr uint64_t kVolumeBytes = uint64_t{16} << 20;
// Whoever waits for these to end waits for as long as a test may take; below the fake's reconnect_seconds.
constexpr server::CoherenceTimeouts kLong{.lease = seconds(50), .drift = seconds(5)};

// A kernel; while it is stopped, its client does not get beyond telling it that the server is lost.
class Kernel final : public client::KernelCache {
 public:
  bool InvalidateInode(uint64_t, uint64_t, uint64_t) override { return true; }
  void InvalidateAttributes(uint64_t ino, steady_clock::time_point) override {
    MutexLock lock(mutex_);
    dropped_.insert(ino);
  }
  [[nodiscard]] bool InvalidateEntry(uint64_t, std::string_view) override { return true; }
  void ServerLost() override {
    MutexLock lock(mutex_);
    ++losses_;
    while (stopped_) {
      changed_.WaitFor(mutex_, seconds(1));
    }
  }
  void Stop(bool stopped) {
    MutexLock lock(mutex_);
    stopped_ = stopped;
    changed_.NotifyAll();
  }
  bool dropped(uint64_t ino) {
    MutexLock lock(mutex_);
    return dropped_.contains(ino);
  }
  int losses() {
    MutexLock lock(mutex_);
    return losses_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool stopped_ GUARDED_BY(mutex_) = false;
  int losses_ GUARDED_BY(mutex_) = 0;
  std::set<uint64_t> dropped_ GUARDED_BY(mutex_);
};

struct Two {
  explicit Two(server::CoherenceTimeouts timeouts) : volume(kVolumeBytes, timeouts) {
    client::OpenFile* const file = a.Create("f");
    EXPECT_TRUE(a.Write(file, 0, "not empty: of empty files a client may have something to say").ok());
    a.Close(file);
    f = a.InodeOf("f");
    EXPECT_GT(Look(), 0);
  }
  // What b's kernel may keep of f.
  double Look() {
    const Attributes attributes = b.Stat(f);
    return b.lane->keep(&attributes).attributes;
  }
  Status Change() {
    client::SetAttributes what;
    what.mode = 0600;
    return a.fs->Set(*a.lane, f, what, nullptr).status();
  }

  MemoryVolume volume;
  Kernel kernel_a;
  Kernel kernel_b;
  Mount a{volume, &kernel_a};
  Mount b{volume, &kernel_b};
  uint64_t f = 0;
};

}  // namespace

TEST(GrantsRestart, AKernelThatIsNotBack_IsWaitedForUntilItsGrantsHaveEnded) {
  Two two({.lease = milliseconds(600), .drift = milliseconds(100)});
  two.kernel_b.Stop(true);
  const auto began = steady_clock::now();
  two.volume.KillAndRestart();
  EXPECT_TRUE(two.Change().ok());
  EXPECT_GE(steady_clock::now() - began, milliseconds(700));
  two.kernel_b.Stop(false);
}

TEST(GrantsRestart, AChange_GoesOnWhenAllAreBack) {
  Two two(kLong);
  two.kernel_b.Stop(true);
  const auto began = steady_clock::now();
  const int losses = two.kernel_b.losses();
  two.volume.KillAndRestart();
  std::thread notices([&] { EXPECT_TRUE(two.b.fs->StatFs(*two.b.lane, kRootInode).ok()); });
  EXPECT_TRUE(Eventually([&] { return two.kernel_b.losses() > losses; }));
  std::atomic<bool> done{false};
  std::thread change([&] {
    EXPECT_TRUE(two.Change().ok());
    done = true;
  });
  {
    Mount other(two.volume);
    while ((other.Stat(two.f).mode & 0777) != 0600 && steady_clock::now() < began + kLong.lease) {
      std::this_thread::yield();
    }
    EXPECT_EQ(other.Stat(two.f).mode & 0777, 0600u) << "it is there, and who looks does not wait";
  }
  EXPECT_FALSE(done);
  two.kernel_b.Stop(false);
  change.join();
  notices.join();
  EXPECT_LT(steady_clock::now() - began, kLong.lease);
  EXPECT_TRUE(two.kernel_b.dropped(two.f)) << "no entry, no name: only so the kernel knows";
  EXPECT_GT(two.Look(), 0) << "it asks for grants in each session";
  EXPECT_EQ(two.b.Stat(two.f).mode & 0777, 0600u);
}

TEST(GrantsRestart, BytesChange_WhenNoKernelMayShowOlderOnes) {
  constexpr milliseconds kLease{900};
  Two two({.lease = kLease, .drift = milliseconds(100)});
  Mount other(two.volume);
  client::OpenFile* const look = other.Open("f", O_RDWR | O_NOATIME);  // else its reads wait, too
  client::OpenFile* const writer = two.a.Open("f");
  client::OpenFile* const reader = two.b.Open("f", O_RDONLY);
  ASSERT_TRUE(two.b.CachePages(reader).ok());
  const std::string old = other.Read(look, 0, 3);
  two.kernel_b.Stop(true);
  const auto began = steady_clock::now();
  two.volume.KillAndRestart();
  EXPECT_EQ(other.Read(look, 0, 3), old);
  std::atomic<bool> done{false};
  std::thread writes([&] {
    EXPECT_TRUE(two.a.Write(writer, 0, "NEW").ok());
    done = true;
  });
  while (!done && other.Read(look, 0, 3) == old) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_GE(steady_clock::now() - began, kLease + milliseconds(100));
  writes.join();
  EXPECT_EQ(other.Read(look, 0, 3), "NEW");
  two.kernel_b.Stop(false);
  two.b.Close(reader);
  two.a.Close(writer);
  other.Close(look);
}

TEST(GrantsRestart, TheOnlyClient_WaitsForNobody) {
  MemoryVolume volume(kVolumeBytes, kLong);
  Kernel kernel;
  Mount a(volume, &kernel);
  a.Close(a.Create("f"));
  const auto began = steady_clock::now();
  volume.KillAndRestart();
  EXPECT_TRUE(a.Remove("f").ok());
  EXPECT_LT(steady_clock::now() - began, kLong.lease);
}

// Of empty files others may have something to say; who comes back is waited for itself.
TEST(GrantsRestart, WhoHasAnEmptyFileLocked_WaitsForNobody) {
  MemoryVolume volume(kVolumeBytes, kLong);
  Kernel kernel;
  Mount a(volume, &kernel);
  client::OpenFile* const file = a.Create("f");
  const client::FileLock lock{.flock = true, .type = LockType::kWrite};
  EXPECT_TRUE(a.fs->Lock(*a.lane, file, lock, nullptr).ok());
  const auto began = steady_clock::now();
  volume.KillAndRestart();
  EXPECT_TRUE(a.fs->StatFs(*a.lane, kRootInode).ok());
  EXPECT_LT(steady_clock::now() - began, kLong.lease);
  Mount b(volume);
  client::OpenFile* const other = b.Open("f");
  EXPECT_EQ(b.fs->Lock(*b.lane, other, lock, nullptr).code(), EBUSY) << "it has its lock";
  a.Close(file);
  b.Close(other);
}

TEST(GrantsRestart, ALostSession_LeavesNothingBehindWhenItsClientIsBack) {
  Two two(kLong);
  two.volume.tlib().LoseReplyOf(kFsStat, [] {});
  EXPECT_TRUE(two.b.fs->StatFs(*two.b.lane, kRootInode).ok());
  EXPECT_EQ(two.b.Metric("link_reconnections_total"), 1u);
  EXPECT_TRUE(two.kernel_b.dropped(two.f));
  EXPECT_GE(two.kernel_b.losses(), 1);
  const auto began = steady_clock::now();
  EXPECT_TRUE(two.Change().ok());
  EXPECT_LT(steady_clock::now() - began, kLong.lease);
}

TEST(GrantsRestart, AReplyToTheSecondAttempt_GrantsFromThatOn) {
  Two two(kLong);
  two.volume.tlib().LoseReplyOf(kFsGetAttributes, [&] { two.volume.KillAndRestart(); });
  EXPECT_GT(two.Look(), 0);
  EXPECT_TRUE(two.Change().ok());
  EXPECT_EQ(two.b.Metric("fs_recalls_total"), 1u) << "the new server knows of it";
}

TEST(GrantsRestart, WhatIsRepeated_GrantsNoName) {
  MemoryVolume volume(kVolumeBytes, kLong);
  Kernel kernel;
  Mount a(volume, &kernel);
  volume.tlib().LoseReplyOf(kFsMake, [&] { volume.KillAndRestart(); });
  const auto made = a.fs->MakeDirectory(*a.lane, {0, 0}, kRootInode, "d", 0755);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ(a.lane->keep(&*made).entry, 0) << "somebody else may have moved it meanwhile";
  EXPECT_EQ(a.InodeOf("d"), made->ino);
  EXPECT_GT(a.lane->keep(nullptr).entry, 0);
}

TEST(GrantsRestart, WhoWouldNotBeExpected_IsGrantedNothing) {
  MemoryVolume volume(kVolumeBytes, kLong);
  volume.SetReconnect(seconds(0));
  Kernel kernel;
  Mount a(volume, &kernel);
  EXPECT_EQ(a.InodeOf("f"), 0u);
  EXPECT_EQ(a.lane->keep(nullptr).entry, 0);
}

TEST(KeptByKernel, Void_ReturnsEachOnceAndCounts) {
  KeptByKernel kept;
  EXPECT_TRUE(kept.Remember(5, seconds(50)));
  EXPECT_TRUE(kept.Remember(7, seconds(50)));
  EXPECT_TRUE(kept.Remember(5, seconds(50)));
  const uint64_t before = kept.recalls();
  const std::vector<uint64_t> inodes = kept.Void();
  EXPECT_EQ(std::multiset<uint64_t>(inodes.begin(), inodes.end()), (std::multiset<uint64_t>{5, 7}));
  EXPECT_NE(kept.recalls(), before);
  EXPECT_TRUE(kept.Void().empty());
}

}  // namespace termfs::fs
