// SPDX-License-Identifier: Apache-2.0
//
// Locks of two clients of one volume: conflicts, waits, and what becomes of them when a session or the server is lost.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <random>
#include <thread>

#include "fs/client/held_locks.h"
#include "fs/proto/opcodes.h"
#include "tests/unit/eventually.h"
#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {

using client::FileLock;
using client::OpenFile;

namespace {

constexpr uint64_t kVolumeBytes = uint64_t{16} << 20;

class Sleeps final : public client::LockSleep {
 public:
  Status Prepare() override { return refusal; }
  void Begin() override { began = true; }
  void End() override {}
  Status refusal;
  std::atomic<bool> began{false};
};

FileLock Record(uint64_t owner, LockType type, uint64_t start = 0, uint64_t end = kLastLockByte) {
  return {.flock = false, .owner = owner, .type = type, .start = start, .end = end, .pid = 77, .wait = false};
}

class FileLocks : public testing::Test {
 protected:
  int Lock(Mount& mount, OpenFile* file, FileLock lock, bool wait = false) {
    lock.wait = wait;
    Sleeps sleeps;
    return mount.fs->Lock(*mount.lane, file, lock, &sleeps).code();
  }
  // A thread with a lane of its own that locks and says how that ended: -1, not yet.
  struct Waiter {
    Waiter(Mount& mount, OpenFile* file, FileLock lock) {
      lock.wait = true;
      auto opened = mount.fs->OpenLane();
      EXPECT_TRUE(opened.ok());
      lane = std::move(opened).value();
      thread = std::thread([this, &mount, file, lock] {
        lane->interruption().Begin(5);
        result = mount.fs->Lock(*lane, file, lock, &sleeps).code();
        lane->interruption().End();
      });
    }
    ~Waiter() { thread.join(); }
    bool Sleeping() {
      return Eventually([&] { return sleeps.began.load(); });
    }
    Sleeps sleeps;
    std::unique_ptr<client::Lane> lane;
    std::atomic<int> result{-1};
    std::thread thread;
  };

  MemoryVolume volume{kVolumeBytes};
  Mount a{volume};
  Mount b{volume};
  OpenFile* const fa = a.Create("f");
  OpenFile* const fb = b.Open("f");
};

}  // namespace

TEST_F(FileLocks, Lock_ConflictsBetweenClients) {
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kWrite, 0, 9)), 0);
  EXPECT_EQ(Lock(b, fb, Record(1, LockType::kRead, 9, 9)), EBUSY);
  EXPECT_EQ(Lock(b, fb, Record(1, LockType::kRead, 10, 19)), 0);
  const auto held = b.fs->TestLock(*b.lane, fb, Record(1, LockType::kRead), nullptr);
  ASSERT_TRUE(held.ok() && held->has_value());
  EXPECT_EQ((*held)->end, 9u);
  EXPECT_EQ((*held)->pid, 77u);
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kUnlock)), 0);
  EXPECT_EQ(Lock(b, fb, Record(1, LockType::kRead, 9, 9)), 0);
  a.Close(fa);
  b.Close(fb);
}

TEST_F(FileLocks, Lock_TheServerChecksWhatItIsAskedFor) {
  FileLock part = Record(1, LockType::kWrite, 0, 9);
  part.flock = true;
  for (const FileLock& lock : {Record(1, LockType::kWrite, 9, 3), Record(1, LockType::kRead, 0, kLastLockByte + 1),
                               Record(1, static_cast<LockType>(4)), part}) {
    EXPECT_EQ(Lock(a, fa, lock), EINVAL);
    EXPECT_EQ(a.fs->TestLock(*a.lane, fa, lock, nullptr).status().code(), EINVAL);
  }
  EXPECT_EQ(Lock(b, fb, Record(1, LockType::kWrite)), 0) << "nothing was locked";
  b.Close(fb);
  EXPECT_TRUE(Eventually([&] { return Lock(a, fa, Record(1, LockType::kWrite)) == 0; }));
  a.Close(fa);
}

TEST_F(FileLocks, Flush_EndsTheOwnersRecordLocksOnly) {
  OpenFile* const again = a.Open("f");
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kWrite, 0, 9)), 0);
  EXPECT_EQ(Lock(a, fa, Record(2, LockType::kWrite, 10, 19)), 0);
  EXPECT_TRUE(a.fs->Flush(*a.lane, fa, 1).ok());
  EXPECT_EQ(Lock(b, fb, Record(1, LockType::kWrite, 0, 9)), 0);
  EXPECT_EQ(Lock(b, fb, Record(1, LockType::kWrite, 10, 19)), EBUSY);
  a.Close(fa);  // the other owner is the open file
  EXPECT_TRUE(Eventually([&] { return Lock(b, fb, Record(1, LockType::kWrite)) == 0; }));
  a.Close(again);
  b.Close(fb);
}

// The kernel sends the release behind the close that has returned.
TEST_F(FileLocks, Flush_OthersWaitForTheReleaseAMoment) {
  FileLock flock = Record(3, LockType::kWrite);
  flock.flock = true;
  for (const FileLock& lock : {Record(3, LockType::kWrite), flock}) {
    OpenFile* const closed = a.Open("f");
    ASSERT_EQ(Lock(a, closed, lock), 0);
    EXPECT_EQ(Lock(b, fb, lock), EBUSY);
    ASSERT_TRUE(a.fs->Flush(*a.lane, closed, 99).ok());
    Sleeps sleeps;
    std::thread closer([&] {
      EXPECT_TRUE(Eventually([&] { return sleeps.began.load(); }));
      a.Close(closed);
    });
    if (lock.flock) {
      EXPECT_TRUE(b.fs->Lock(*b.lane, fb, lock, &sleeps).ok());
    } else {
      const auto held = b.fs->TestLock(*b.lane, fb, lock, &sleeps);
      EXPECT_TRUE(held.ok() && !held->has_value());
    }
    closer.join();
  }
  a.Close(fa);
  b.Close(fb);
}

TEST_F(FileLocks, Flush_OfOneOfSeveralDescriptorsKeepsTheLock) {
  ASSERT_EQ(Lock(a, fa, Record(3, LockType::kWrite)), 0);
  ASSERT_TRUE(a.fs->Flush(*a.lane, fa, 99).ok());
  EXPECT_EQ(Lock(b, fb, Record(3, LockType::kWrite)), EBUSY) << "after the moment";
  Sleeps sleeps;
  const auto held = b.fs->TestLock(*b.lane, fb, Record(3, LockType::kWrite), &sleeps);
  EXPECT_TRUE(held.ok() && held->has_value());
  EXPECT_FALSE(sleeps.began) << "it is over";
  a.Close(fa);
  b.Close(fb);
}

TEST_F(FileLocks, Release_EndsFlock) {
  FileLock lock = Record(3, LockType::kWrite);
  lock.flock = true;
  OpenFile* const again = a.Open("f");
  EXPECT_EQ(Lock(a, fa, lock), 0);
  EXPECT_EQ(Lock(b, fb, lock), EBUSY);
  EXPECT_EQ(Lock(b, fb, Record(3, LockType::kWrite)), 0) << "fcntl does not see flock";
  a.Close(fa);
  EXPECT_TRUE(Eventually([&] { return Lock(b, fb, lock) == 0; }));
  a.Close(again);
  b.Close(fb);
}

// The kernel numbers open files by their memory, which the next one may get before the release of this one has come.
TEST_F(FileLocks, Flock_IsTheHandlesOwn_WhateverTheKernelCallsIt) {
  FileLock lock = Record(3, LockType::kWrite);
  lock.flock = true;
  OpenFile* const next = a.Open("f");
  EXPECT_EQ(Lock(a, fa, lock), 0);
  EXPECT_EQ(Lock(a, next, lock), EBUSY);
  lock.type = LockType::kUnlock;
  EXPECT_EQ(Lock(a, fa, lock), 0);
  lock.type = LockType::kWrite;
  EXPECT_EQ(Lock(a, next, lock), 0);
  a.Close(fa);
  a.FreeBytes();  // after which the server has heard of it
  EXPECT_EQ(Lock(b, fb, lock), EBUSY);
  a.Close(next);
  EXPECT_TRUE(Eventually([&] { return Lock(b, fb, lock) == 0; }));
  b.Close(fb);
}

TEST_F(FileLocks, OpenFilesLock_OfTheKernelsNumberOfAnEarlierOne_StaysAtItsRelease) {
  OpenFile* const next = a.Open("f");
  EXPECT_EQ(Lock(a, fa, Record(9, LockType::kWrite)), 0);
  EXPECT_EQ(Lock(a, fa, Record(9, LockType::kUnlock)), 0);
  EXPECT_EQ(Lock(a, next, Record(9, LockType::kWrite)), 0);
  a.Close(fa);
  a.FreeBytes();
  EXPECT_EQ(Lock(b, fb, Record(1, LockType::kWrite)), EBUSY);
  a.Close(next);
  EXPECT_TRUE(Eventually([&] { return Lock(b, fb, Record(1, LockType::kWrite)) == 0; }));
  b.Close(fb);
}

TEST_F(FileLocks, OpenFilesLock_EndsAtItsRelease_ThoughTheNextWasRefusedOne) {
  OpenFile* const next = a.Open("f");
  EXPECT_EQ(Lock(a, fa, Record(9, LockType::kWrite, 0, 9)), 0);
  EXPECT_EQ(Lock(b, fb, Record(1, LockType::kWrite, 20, 29)), 0);
  EXPECT_EQ(Lock(a, next, Record(9, LockType::kWrite, 20, 29)), EBUSY);
  a.Close(fa);
  EXPECT_EQ(Lock(b, fb, Record(1, LockType::kWrite, 0, 9)), 0) << "the release was waited for";
  a.Close(next);
  b.Close(fb);
}

// close(2) returns after the flush; the release comes later.
TEST_F(FileLocks, Release_EndsNoRecordLockOfWhoWasFlushed) {
  OpenFile* const next = a.Open("f");
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kWrite)), 0);
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kUnlock)), 0);
  EXPECT_TRUE(a.fs->Flush(*a.lane, fa, 1).ok());
  EXPECT_EQ(Lock(a, next, Record(1, LockType::kWrite)), 0);
  a.Close(fa);
  a.FreeBytes();
  EXPECT_EQ(Lock(b, fb, Record(1, LockType::kWrite)), EBUSY);
  a.Close(next);
  b.Close(fb);
}

TEST_F(FileLocks, Wait_IsHandedTheLock) {
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kWrite)), 0);
  {
    Waiter waiter(b, fb, Record(1, LockType::kWrite));
    ASSERT_TRUE(waiter.Sleeping());
    EXPECT_EQ(waiter.result, -1);
    EXPECT_EQ(Lock(a, fa, Record(1, LockType::kUnlock)), 0);
    EXPECT_TRUE(Eventually([&] { return waiter.result == 0; }));
  }
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kRead)), EBUSY);
  a.Close(fa);
  b.Close(fb);
}

TEST_F(FileLocks, Wait_InterruptedLeavesNothingQueued) {
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kWrite)), 0);
  {
    Waiter waiter(b, fb, Record(1, LockType::kWrite));
    ASSERT_TRUE(waiter.Sleeping());
    EXPECT_TRUE(waiter.lane->interruption().Interrupt(5));
    EXPECT_TRUE(Eventually([&] { return waiter.result == EINTR; }));
  }
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kUnlock)), 0);
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kWrite)), 0) << "nobody was given it";
  a.Close(fa);
  b.Close(fb);
}

TEST_F(FileLocks, Wait_WithoutAThreadIsRefused) {
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kWrite)), 0);
  Sleeps sleeps;
  sleeps.refusal = Status::Error(ENOLCK, "no thread");
  FileLock lock = Record(1, LockType::kWrite);
  lock.wait = true;
  EXPECT_EQ(b.fs->Lock(*b.lane, fb, lock, &sleeps).code(), ENOLCK);
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kUnlock)), 0);
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kWrite)), 0) << "nothing was left queued";
  a.Close(fa);
  b.Close(fb);
}

TEST_F(FileLocks, Deadlock_BetweenClientsIsRefused) {
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kWrite, 0, 0)), 0);
  EXPECT_EQ(Lock(b, fb, Record(1, LockType::kWrite, 1, 1)), 0);
  Waiter waiter(b, fb, Record(1, LockType::kWrite, 0, 0));
  ASSERT_TRUE(waiter.Sleeping());
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kWrite, 1, 1), true), EDEADLK);
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kUnlock)), 0);
  EXPECT_TRUE(Eventually([&] { return waiter.result == 0; }));
  a.Close(fa);
  b.Close(fb);
}

TEST_F(FileLocks, Restart_NobodyIsQuickerThanWhoHolds) {
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kWrite, 0, 9)), 0);
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kUnlock, 3, 5)), 0);
  volume.KillAndRestart();
  std::atomic<int> result{-1};
  std::thread quick([&] { result = Lock(b, fb, Record(1, LockType::kWrite, 0, 2)); });
  EXPECT_TRUE(Eventually([&] { return b.Metric("link_reconnections_total") == 1; }));
  EXPECT_EQ(result, -1) << "the other client has not come back";
  EXPECT_TRUE(a.Write(fa, 0, "is back").ok());
  quick.join();
  EXPECT_EQ(result, EBUSY);
  EXPECT_EQ(Lock(b, fb, Record(1, LockType::kWrite, 6, 9)), EBUSY);
  EXPECT_EQ(Lock(b, fb, Record(1, LockType::kWrite, 3, 5)), 0);
  a.Close(fa);
  b.Close(fb);
}

TEST_F(FileLocks, Restart_NobodyIsToldThatItIsFreeBeforeWhoHoldsIsBack) {
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kWrite, 0, 9)), 0);
  volume.KillAndRestart();
  std::atomic<bool> told{false};
  std::optional<FileLock> held;
  Sleeps sleeps;
  std::thread asks([&] {
    const auto found = b.fs->TestLock(*b.lane, fb, Record(1, LockType::kRead, 5, 99), &sleeps);
    EXPECT_TRUE(found.ok()) << found.status().ToString();
    held = found.ok() ? *found : std::nullopt;
    told = true;
  });
  EXPECT_TRUE(Eventually([&] { return sleeps.began || told; }));
  EXPECT_FALSE(told) << "the other client has not come back";
  EXPECT_EQ(a.fs->TestLock(*a.lane, fa, Record(2, LockType::kRead), nullptr).status().code(), 0) << "all are back";
  asks.join();
  ASSERT_TRUE(held.has_value());
  EXPECT_EQ(held->start, 0u);
  EXPECT_EQ(held->end, 9u);
  a.Close(fa);
  b.Close(fb);
}

// Somebody else has had the lock, and what relies on it must not go on: whatever becomes of the session in which it is
// told, and of the server.
TEST_F(FileLocks, Expelled_HasLostItsLocks) {
  const std::function<void()> strikes[] = {[] {}, [this] { volume.KillAndRestart(); }};
  for (const auto& strike : strikes) {
    Mount late(volume);
    OpenFile* const file = late.Open("f");
    EXPECT_EQ(Lock(late, file, Record(1, LockType::kWrite)), 0);
    const uint64_t session = volume.tlib().last_session();
    volume.tlib().Expel({session}, "it did not answer");
    EXPECT_TRUE(Eventually([&] { return volume.tlib().HasEnded(session); }));
    EXPECT_EQ(Lock(b, fb, Record(1, LockType::kWrite)), 0);
    EXPECT_EQ(Lock(b, fb, Record(1, LockType::kUnlock)), 0);
    std::atomic<bool> struck{false};
    volume.tlib().LoseReplyOf(kFsReclaim, [&] {
      strike();
      struck = true;
    });
    EXPECT_EQ(late.Write(file, 0, "relies on its lock").code(), EIO);
    EXPECT_TRUE(struck);
    EXPECT_TRUE(a.Write(fa, 0, "is back").ok());
    EXPECT_EQ(Lock(b, fb, Record(1, LockType::kWrite)), 0);
    EXPECT_EQ(Lock(b, fb, Record(1, LockType::kUnlock)), 0);
    late.Close(file);
  }
  a.Close(fa);
  b.Close(fb);
}

TEST_F(FileLocks, Expelled_IsToldOfAllItsFiles_ThoughThatSessionIsLostToo) {
  Mount late(volume);
  std::vector<OpenFile*> locked;
  std::vector<OpenFile*> others;
  for (const std::string name : {"1", "2", "3", "4", "5", "6", "7", "8", "9"}) {
    OpenFile* const file = late.Create(name);
    ASSERT_TRUE(late.Write(file, 0, "x").ok());
    if (others.size() < 3) {
      others.push_back(file);
    } else {
      locked.push_back(file);
      EXPECT_EQ(Lock(late, file, Record(1, LockType::kWrite)), 0);
    }
  }
  std::atomic<bool> struck{false};
  volume.tlib().LoseReplyOf(kFsReopen, [&] { struck = true; });
  const uint64_t session = volume.tlib().last_session();
  volume.tlib().Expel({session}, "it did not answer");
  EXPECT_TRUE(Eventually([&] { return volume.tlib().HasEnded(session); }));
  for (OpenFile* const file : others) {
    EXPECT_TRUE(late.Write(file, 0, "y").ok());
  }
  EXPECT_TRUE(struck);
  for (OpenFile* const file : locked) {
    EXPECT_EQ(late.Write(file, 0, "relies on its lock").code(), EIO);
  }
  EXPECT_EQ(late.Metric("link_files_lost_total"), locked.size());
  for (OpenFile* const file : others) {
    late.Close(file);
  }
  for (OpenFile* const file : locked) {
    late.Close(file);
  }
  a.Close(fa);
  b.Close(fb);
}

TEST_F(FileLocks, Restart_WhoComesTooLateIsTold) {
  volume.SetExpected(1);
  Mount late(volume);
  OpenFile* const file = late.Open("f");
  OpenFile* const other = late.Create("g");
  EXPECT_EQ(Lock(late, file, Record(1, LockType::kWrite)), 0);
  volume.KillAndRestart();
  EXPECT_TRUE(a.Write(fa, 0, "is back").ok());
  EXPECT_EQ(Lock(b, fb, Record(1, LockType::kWrite)), 0) << "once the time of the other is over";
  EXPECT_EQ(late.Write(file, 0, "relies on its lock").code(), EIO);
  EXPECT_TRUE(late.Write(other, 0, "does not").ok());
  late.Close(file);
  late.Close(other);
  a.Close(fa);
  b.Close(fb);
}

// It has a session again, and is stopped before it has said what it had.
TEST_F(FileLocks, Restart_WhoComesAndSaysNothingIsNotWaitedForLonger) {
  constexpr uint64_t kSilent = 1000;
  class : public tlib::client::CallbackHandler {
    Result<std::vector<std::byte>> HandleCallback(uint16_t, std::span<const std::byte>) override {
      return Status::Error(ENOSYS, "it is stopped");
    }
    void SessionLost(const Status&) override {}
  } handler;
  ASSERT_TRUE(volume.tlib().Connect(&handler, kSilent, 1).ok()) << "of the first start";
  volume.KillAndRestart();
  const auto silent = volume.tlib().Connect(&handler, kSilent, 1);
  ASSERT_TRUE(silent.ok());
  EXPECT_TRUE(a.Write(fa, 0, "is back").ok());
  std::atomic<int> result{-1};
  std::thread locks([&] { result = Lock(b, fb, Record(1, LockType::kWrite)); });
  EXPECT_TRUE(Eventually([&] { return result == 0; }, std::chrono::seconds(20)));
  EXPECT_TRUE((*silent)->lost());
  EXPECT_TRUE(a.Remove("f").ok());
  a.Close(fa);
  if (result != 0) {
    (*silent)->Abandon(Status::Error(ETIMEDOUT, "so that the lock is granted"));
  }
  locks.join();
  b.Close(fb);
  EXPECT_TRUE(Eventually([&] { return a.FreeBytes() == kVolumeBytes; })) << "nobody is expected";
}

// A session whose connections have ended is lost, not expelled: its client comes back to its locks.
TEST_F(FileLocks, CallbackConnectionHasEnded_LocksStay) {
  ASSERT_TRUE(a.Write(fa, 0, std::string(100000, 'x')).ok());
  EXPECT_EQ(b.Read(fb, 0, 4), "xxxx") << "it has an extent map";
  EXPECT_EQ(Lock(b, fb, Record(1, LockType::kWrite)), 0);
  volume.tlib().BreakCallbacks(volume.tlib().last_session());
  ASSERT_TRUE(a.Resize(a.InodeOf("f"), 0, fa).ok());
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kWrite)), EBUSY);
  EXPECT_EQ(b.Read(fb, 0, 4), "");
  EXPECT_EQ(b.Metric("link_reconnections_total"), 1u);
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kWrite)), EBUSY);
  EXPECT_EQ(Lock(b, fb, Record(1, LockType::kUnlock)), 0);
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kWrite)), 0);
  a.Close(fa);
  b.Close(fb);
}

TEST_F(FileLocks, Restart_WhoWaitedGoesOnWaiting) {
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kWrite)), 0);
  Waiter waiter(b, fb, Record(1, LockType::kWrite));
  ASSERT_TRUE(waiter.Sleeping());
  volume.KillAndRestart();
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kWrite)), 0);
  EXPECT_EQ(waiter.result, -1);
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kUnlock)), 0);
  EXPECT_TRUE(Eventually([&] { return waiter.result == 0; }));
  a.Close(fa);
  b.Close(fb);
}

// The lock whose reply was lost is asked for again.
TEST_F(FileLocks, Disconnect_KeepsLocks) {
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kWrite, 0, 9)), 0);
  std::atomic<int> meanwhile{-1};
  volume.tlib().LoseReplyOf(kFsLock, [&] { meanwhile = 0; });
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kWrite, 20, 29)), 0);
  EXPECT_EQ(meanwhile, 0) << "the reply was not lost";
  EXPECT_EQ(a.Metric("link_reconnections_total"), 1u);
  EXPECT_EQ(Lock(b, fb, Record(1, LockType::kRead, 0, 0)), EBUSY);
  EXPECT_EQ(Lock(b, fb, Record(1, LockType::kRead, 20, 20)), EBUSY);
  EXPECT_EQ(Lock(a, fa, Record(1, LockType::kUnlock)), 0);
  EXPECT_EQ(Lock(b, fb, Record(1, LockType::kWrite)), 0);
  a.Close(fa);
  b.Close(fb);
}

TEST_F(FileLocks, Disconnect_ForGoodEndsThemWhenItsTimeIsOver) {
  volume.SetExpected(1);
  Mount late(volume);
  OpenFile* const file = late.Open("f");
  EXPECT_EQ(Lock(late, file, Record(1, LockType::kWrite)), 0);
  late.fs->Abandon("it does not come back");
  EXPECT_EQ(Lock(b, fb, Record(1, LockType::kWrite)), EBUSY) << "it may come back";
  EXPECT_TRUE(Eventually([&] { return Lock(b, fb, Record(1, LockType::kWrite)) == 0; }));
  late.Close(file);
  a.Close(fa);
  b.Close(fb);
}

TEST(HeldLocks, Note_RepliesInAnyOrder) {
  client::HeldLocks held;
  const client::LockKey key{.ino = 1, .flock = false, .owner = 2};
  {
    client::HeldLocks::Asking first(held, key, 1);
    client::HeldLocks::Asking second(held, key, 1);
    second.Done({.start = 3, .end = 5}, LockType::kUnlock, 11);
    first.Done({.start = 0, .end = 9, .write = true}, LockType::kWrite, 10);
  }
  const auto all = held.All();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].range, (LockRange{0, 2, true, 0}));
  EXPECT_EQ(all[1].range, (LockRange{6, 9, true, 0}));
  {
    client::HeldLocks::Asking unlock(held, key, 1);
    unlock.Doubt(LockType::kUnlock);
  }
  {
    client::HeldLocks::Asking unlock(held, key, 1);
    unlock.Done({.start = 0, .end = kLastLockByte}, LockType::kUnlock, 12);
  }
  EXPECT_FALSE(held.Any(key));
}

// As the server carries them out, whatever the order in which it is heard of.
TEST(HeldLocks, Note_ManyRepliesInAnyOrder) {
  std::mt19937 random(7);
  const auto below = [&random](uint64_t limit) { return random() % limit; };
  for (int round = 0; round < 300; ++round) {
    struct Reply {
      LockRange range;
      LockType type;
      uint64_t change;
    };
    LockRanges truth;
    std::vector<Reply> replies;
    for (uint64_t change = 1; change <= 12; ++change) {
      const uint64_t start = below(20);
      const auto type = static_cast<LockType>(below(3));
      replies.push_back({{.start = start, .end = start + below(8), .write = type == LockType::kWrite}, type, change});
      truth.Set(start, replies.back().range.end, type, 0);
    }
    std::shuffle(replies.begin(), replies.end(), random);
    client::HeldLocks held;
    const client::LockKey key{.ino = 1, .flock = false, .owner = 2};
    {
      client::HeldLocks::Asking asking(held, key, 1);
      for (const Reply& reply : replies) {
        asking.Done(reply.range, reply.type, reply.change);
      }
    }
    std::vector<LockRange> ranges;
    for (const auto& one : held.All()) {
      ranges.push_back(one.range);
    }
    EXPECT_EQ(ranges, std::vector<LockRange>(truth.all().begin(), truth.all().end())) << round;
  }
}

TEST(HeldLocks, WhoWaits_MakesTheOthersKeepOnlyWhatItMayStillOverturn) {
  constexpr uint64_t kRanges = 100'000;
  constexpr uint64_t kBetween = 1000;  // questions of who waits
  client::HeldLocks held;
  const client::LockKey key{.ino = 1, .flock = false, .owner = 2};
  client::HeldLocks::Asking waits(held, key, 1);
  uint64_t change = 0;
  uint64_t then = waits.Now();
  for (uint64_t i = 0; i < kRanges; ++i) {
    const LockRange range{.start = 10 + 2 * i, .end = 10 + 2 * i, .write = true};
    client::HeldLocks::Asking other(held, key, 1);
    other.Done(range, LockType::kWrite, ++change);
    other.Done(range, LockType::kUnlock, ++change);
    if (i % kBetween == 0) {
      waits.NotYet(then);
      then = waits.Now();
    }
    ASSERT_LE(held.recent(), 2 * kBetween);
  }
  // It was granted before the last of the others, of which it is heard first.
  waits.Done({.start = 0, .end = kLastLockByte, .write = true}, LockType::kWrite, change - 1);
  const auto all = held.All();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].range, (LockRange{0, 9 + 2 * (kRanges - 1), true, 0}));
  EXPECT_EQ(all[1].range, (LockRange{11 + 2 * (kRanges - 1), kLastLockByte, true, 0}));
}

// Whoever closes another handle of the file unlocks all of his locks; when nobody knows whether that was done, they end
// with the handle that got them.
TEST(HeldLocks, Doubt_OfAnUnlockByAnotherHandle) {
  client::HeldLocks held;
  const client::LockKey key{.ino = 1, .flock = false, .owner = 2};
  {
    client::HeldLocks::Asking lock(held, key, 1);
    lock.Done({.start = 0, .end = 9, .write = true}, LockType::kWrite, 10);
  }
  {
    client::HeldLocks::Asking unlock(held, key, 2);
    unlock.Doubt(LockType::kUnlock);
  }
  EXPECT_FALSE(held.EndWith(key, 2));
  EXPECT_TRUE(held.EndWith(key, 1));
  held.EndedWith(key);
  EXPECT_FALSE(held.Any(key));
  {
    client::HeldLocks::Asking unlock(held, key, 2);
    unlock.Doubt(LockType::kUnlock);
  }
  EXPECT_TRUE(held.EndWith(key, 2)) << "nothing is left behind where nothing was locked";
  held.EndedWith(key);
}

}  // namespace termfs::fs
