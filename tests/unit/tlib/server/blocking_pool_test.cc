// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/blocking_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "tests/unit/eventually.h"
#include "tlib/server/cpus.h"
#include "tlib/server/worker.h"

namespace termfs::tlib::server {
namespace {

TEST(BlockingPool, RunsWhatManyThreadsSubmit_EachOnce) {
  constexpr size_t kSubmitters = 4;
  constexpr size_t kEach = 500;
  std::vector<std::atomic<int>> runs(kSubmitters * kEach);
  const auto pool = BlockingPool::Start(3).value();
  std::vector<std::thread> submitters;
  for (size_t s = 0; s < kSubmitters; s++) {
    submitters.emplace_back([&, s] {
      for (size_t i = 0; i < kEach; i++) {
        pool->Submit([&runs, at = s * kEach + i] { runs[at]++; });
      }
    });
  }
  for (std::thread& submitter : submitters) {
    submitter.join();
  }
  const auto ran_once = [&] {
    return std::all_of(runs.begin(), runs.end(), [](const auto& times) { return times == 1; });
  };
  EXPECT_TRUE(Eventually(ran_once));
  pool->Stop();
  EXPECT_TRUE(ran_once());
}

TEST(BlockingPool, AsManyBlockAtATimeAsThereAreThreads) {
  constexpr int kThreads = 4;
  std::atomic<int> inside{0};
  std::atomic<bool> later{false};
  std::promise<void> leave;
  const std::shared_future<void> left = leave.get_future().share();
  const auto pool = BlockingPool::Start(kThreads).value();
  for (int i = 0; i < kThreads; i++) {
    pool->Submit([&inside, left] {
      inside++;
      left.wait();
    });
  }
  EXPECT_TRUE(Eventually([&] { return inside == kThreads; }));
  pool->Submit([&] { later = true; });
  leave.set_value();
  EXPECT_TRUE(Eventually([&] { return later.load(); }));
}

TEST(BlockingPool, Stop_RunsWhatWasSubmittedBefore) {
  constexpr int kTimes = 1000;
  std::atomic<int> runs{0};
  const auto pool = BlockingPool::Start(2).value();
  for (int i = 0; i < kTimes; i++) {
    pool->Submit([&] { runs++; });
  }
  pool->Stop();
  EXPECT_EQ(runs, kTimes);
}

TEST(BlockingPool, OneThingAtATime_IsDoneByFewThreads) {
  constexpr int kTimes = 400;
  std::map<std::thread::id, int> done;
  const auto pool = BlockingPool::Start(16).value();
  for (int i = 0; i < kTimes; i++) {
    const auto by = std::make_shared<std::promise<std::thread::id>>();
    pool->Submit([by] { by->set_value(std::this_thread::get_id()); });
    done[by->get_future().get()]++;  // it may not be asleep again when the next one is submitted
  }
  const auto most = std::max_element(done.begin(), done.end(), [](auto& a, auto& b) { return a.second < b.second; });
  EXPECT_GT(most->second, kTimes / 8) << "by turns each would do a sixteenth";
}

// The CPUs that the thread which carries out one Run may be on, when so many tasks begin at the same time on `worker`,
// which has not started yet.
int CpusOfWhatIsHandedOver(BlockingPool& pool, Worker& worker, int tasks) {
  std::atomic<int> left{tasks};
  std::atomic<int> first{0};
  for (int i = 0; i < tasks; i++) {
    worker.Spawn([&, i] {
      pool.Run([&, i] {
        if (i == 0) {
          first = static_cast<int>(CpusOfThisThread(CPU_SETSIZE).size());
        }
      });
      left--;
    });
  }
  worker.Start();
  EXPECT_TRUE(Eventually([&] { return left == 0; }));
  worker.Stop();
  return first;
}

TEST(BlockingPool, AnIdleWorkersCallRunsOnItsCpu_ABusyOnesAnywhere) {
  const std::vector<int> cpus = CpusOfThisThread(CPU_SETSIZE);
  if (cpus.size() < 2) {
    GTEST_SKIP() << "there is one CPU";
  }
  std::vector<std::unique_ptr<Worker>> workers;  // outlive the pool
  const auto pool = BlockingPool::Start(4, cpus).value();
  const auto cpus_among = [&](int tasks) {
    workers.push_back(Worker::Create({}).value());
    return CpusOfWhatIsHandedOver(*pool, *workers.back(), tasks);
  };
  // Not each time: a thread falls asleep some time after it has ended something, later when the machine is busy.
  constexpr int kTimes = 20;
  int here = 0;
  int anywhere = 0;
  for (int i = 0; i < kTimes; i++) {
    here += cpus_among(1) == 1 ? 1 : 0;
    anywhere += cpus_among(2) == static_cast<int>(cpus.size()) ? 1 : 0;
  }
  EXPECT_GT(here, kTimes / 10);
  EXPECT_GT(anywhere, kTimes / 10);
}

}  // namespace
}  // namespace termfs::tlib::server
