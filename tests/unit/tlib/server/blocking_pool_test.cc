// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/blocking_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <thread>
#include <vector>

#include "tests/unit/eventually.h"

namespace termfs::tlib::server {
namespace {

using std::chrono::milliseconds;

TEST(BlockingPool, RunsWhatManyThreadsSubmit_EachOnce) {
  constexpr int kSubmitters = 4;
  constexpr int kEach = 500;
  std::vector<std::atomic<int>> runs(kSubmitters * kEach);
  const auto pool = BlockingPool::Start(3).value();
  std::vector<std::thread> submitters;
  for (int s = 0; s < kSubmitters; s++) {
    submitters.emplace_back([&, s] {
      for (int i = 0; i < kEach; i++) {
        pool->Submit([&runs, at = s * kEach + i] { runs[static_cast<size_t>(at)]++; });
      }
    });
  }
  for (std::thread& submitter : submitters) {
    submitter.join();
  }
  pool->Stop();  // after all that was submitted
  EXPECT_TRUE(std::all_of(runs.begin(), runs.end(), [](const auto& times) { return times == 1; }));
}

TEST(BlockingPool, AsManyBlockAtATimeAsThereAreThreads) {
  constexpr int kThreads = 4;
  const auto pool = BlockingPool::Start(kThreads).value();
  std::atomic<int> inside{0};
  std::promise<void> leave;
  const std::shared_future<void> left = leave.get_future().share();
  for (int i = 0; i < kThreads; i++) {
    pool->Submit([&inside, left] {
      inside++;
      left.wait();
    });
  }
  EXPECT_TRUE(Eventually([&] { return inside == kThreads; }));
  std::atomic<bool> later{false};
  pool->Submit([&] { later = true; });
  leave.set_value();
  EXPECT_TRUE(Eventually([&] { return later.load(); }));
}

TEST(BlockingPool, OneThingAtATime_IsDoneByOneThread) {
  const auto pool = BlockingPool::Start(8).value();
  std::map<std::thread::id, int> done;
  constexpr int kTimes = 200;
  for (int i = 0; i < kTimes; i++) {
    std::promise<std::thread::id> by;
    pool->Submit([&] { by.set_value(std::this_thread::get_id()); });
    done[by.get_future().get()]++;
    std::this_thread::sleep_for(milliseconds(1));  // it falls asleep again; if not, the next thing goes to another
  }
  const auto most = std::max_element(done.begin(), done.end(), [](auto& a, auto& b) { return a.second < b.second; });
  EXPECT_GT(most->second, kTimes / 2) << "by turns each would do an eighth";
}

}  // namespace
}  // namespace termfs::tlib::server
