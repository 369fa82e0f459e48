// SPDX-License-Identifier: Apache-2.0
#include "base/mutex.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/fakes/manual_clock.h"

namespace termfs {
namespace {

class Account {
 public:
  void Add(int n) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    sum_ += n;
    changed_.NotifyAll();
  }
  // False when that did not happen in time.
  bool WaitFor(int sum, std::chrono::milliseconds patience) EXCLUDES(mutex_) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    const MutexLock lock(mutex_);
    while (sum_ < sum) {
      if (!changed_.WaitUntil(mutex_, deadline)) {
        return sum_ >= sum;
      }
    }
    return true;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int sum_ GUARDED_BY(mutex_) = 0;
};

TEST(Mutex, Lock_KeepsOthersOut) {
  Account account;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; i++) {
    threads.emplace_back([&account] {
      for (int n = 0; n < 10000; n++) {
        account.Add(1);
      }
    });
  }
  EXPECT_TRUE(account.WaitFor(40000, std::chrono::minutes(1)));
  threads.clear();
  EXPECT_FALSE(account.WaitFor(40001, std::chrono::milliseconds(1))) << "added more than there was";
}

bool AnotherThreadGets(Mutex& mutex) {
  bool got = false;
  std::jthread([&] {
    if (mutex.TryLock()) {
      got = true;
      mutex.Unlock();
    }
  }).join();
  return got;
}

TEST(MutexLock, Scope_IsHowLongItIsHeld) {
  Mutex mutex;
  {
    const MutexLock lock(mutex);
    EXPECT_FALSE(AnotherThreadGets(mutex));
  }
  EXPECT_TRUE(AnotherThreadGets(mutex));
}

TEST(CondVar, WaitUntil_EndsAtTheDeadlineWithTheMutexHeld) {
  Mutex mutex;
  CondVar never;
  const MutexLock lock(mutex);
  while (never.WaitFor(mutex, std::chrono::milliseconds(1))) {
  }
  EXPECT_FALSE(AnotherThreadGets(mutex));
}

TEST(SharedMutex, ReaderLock_AdmitsReaders) {
  SharedMutex mutex;
  const ReaderLock first(mutex);
  bool second = false;
  std::jthread([&] {
    const ReaderLock lock(mutex);
    second = true;
  }).join();
  EXPECT_TRUE(second);
}

TEST(ManualClock, Advance_MovesBothClocks) {
  fakes::ManualClock clock;
  const BootTime start = clock.Now();
  const Nanoseconds real = clock.RealTime();
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(std::chrono::seconds(3));
  EXPECT_EQ(clock.Now() - start, std::chrono::seconds(3));
  EXPECT_EQ(clock.RealTime() - real, std::chrono::seconds(3));
}

TEST(SystemClock, Now_NeverGoesBack) {
  const BootTime first = Clock::System().Now();
  EXPECT_GE(Clock::System().Now(), first);
  EXPECT_GT(Clock::System().RealTime(), std::chrono::hours(24 * 365 * 50));
}

}  // namespace
}  // namespace termfs
