// SPDX-License-Identifier: Apache-2.0
#include "fs/server/name_locks.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/random.h"
#include "tests/fakes/memory_tlib.h"

namespace termfs::fs::server {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr milliseconds kLong{60'000};

// Runs what a test says as tasks of several workers.
class NameLocksTest : public testing::Test {
 protected:
  static GrantKey Name(const std::string& name) { return GrantKey::Entry(1, name); }
  static void WaitFor(const std::atomic<int>& count, int least) {
    const auto deadline = steady_clock::now() + std::chrono::seconds(60);
    while (count < least && steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    ASSERT_GE(count, least);
  }
  // A task that holds the names until `may_end`, and counts in `holding` while it does.
  void Start(NameLocks& locks, std::vector<GrantKey> names, const std::atomic<bool>& may_end, std::atomic<int>& holding,
             std::atomic<int>& ended) {
    server_.Spawn([&locks, names = std::move(names), &may_end, &holding, &ended] {
      {
        const NameLocks::Hold hold(locks, {names.front(), names.back()});
        EXPECT_EQ(hold.size(), names.size());
        ++holding;
        while (!may_end) {
          tlib::server::Task::Yield();
        }
        --holding;
      }
      ++ended;
    });
  }

  MemoryServer server_{2};
};

TEST_F(NameLocksTest, Hold_OfOneName_IsForOneAtATime) {
  NameLocks locks(kLong);
  std::atomic<bool> first_may_end{false}, may_end{false};
  std::atomic<int> holding{0}, ended{0}, others{0};
  Start(locks, {Name("a"), Name("b")}, first_may_end, holding, ended);
  WaitFor(holding, 1);
  Start(locks, {Name("b")}, may_end, holding, ended);
  Start(locks, {Name("c"), Name("a")}, may_end, holding, ended);
  Start(locks, {Name("d")}, may_end, others, ended);
  WaitFor(others, 1);  // another name is free
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(holding, 1);
  first_may_end = true;
  WaitFor(holding, 2);
  may_end = true;
  WaitFor(ended, 4);
}

TEST_F(NameLocksTest, Hold_InAnyOrder_NeverWaitsForEver) {
  constexpr int kTasks = 16;
  constexpr int kRounds = 200;
  NameLocks locks(kLong);
  std::array<std::atomic<int>, 3> inside{};
  std::atomic<int> ended{0};
  for (int task = 0; task < kTasks; ++task) {
    server_.Spawn([&, task] {
      Random random(static_cast<uint64_t>(task));
      for (int round = 0; round < kRounds; ++round) {
        const size_t one = random.Below(inside.size());
        const size_t other = random.Below(inside.size());
        const NameLocks::Hold hold(locks, {Name(std::to_string(one)), Name(std::to_string(other))});
        EXPECT_EQ(hold.size(), one == other ? 1U : 2U);
        EXPECT_EQ(++inside[one], 1);
        EXPECT_TRUE(one == other || ++inside[other] == 1);
        tlib::server::Task::Yield();
        --inside[one];
        inside[other] -= one == other ? 0 : 1;
      }
      ++ended;
    });
  }
  WaitFor(ended, kTasks);
}

TEST_F(NameLocksTest, Hold_OfWhatIsNotGivenBack_GoesOnWithout) {
  NameLocks locks(milliseconds(10));
  std::atomic<bool> may_end{false};
  std::atomic<int> holding{0}, ended{0};
  Start(locks, {Name("a")}, may_end, holding, ended);
  WaitFor(holding, 1);
  ASSERT_TRUE(server_
                  .RunInCoroutine([&] {
                    const NameLocks::Hold hold(locks, {Name("a"), Name("b")});
                    EXPECT_EQ(hold.size(), 1U);
                    return Status::Ok();
                  })
                  .ok());
  may_end = true;
  WaitFor(ended, 1);
  ASSERT_TRUE(server_
                  .RunInCoroutine([&] {
                    const NameLocks::Hold hold(locks, {Name("a"), Name("b")});
                    EXPECT_EQ(hold.size(), 2U);
                    return Status::Ok();
                  })
                  .ok());
}

}  // namespace
}  // namespace termfs::fs::server
