// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/task.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tlib/server/worker.h"

namespace termfs::tlib::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class TaskTest : public testing::Test {
 protected:
  void SetUp() override {
    auto worker = Worker::Create({});
    ASSERT_TRUE(worker.ok());
    worker_ = std::move(worker).value();
    worker_->Start();
  }
  // Runs `function` in a task and waits for it.
  void Run(const std::function<void()>& function) {
    std::promise<void> done;
    worker_->Spawn([&] {
      function();
      done.set_value();
    });
    ASSERT_EQ(done.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  }
  std::unique_ptr<Worker> worker_;
};

TEST_F(TaskTest, Current_IsItsOwnTaskAndWorker) {
  Run([&] {
    EXPECT_TRUE(Task::InTask());
    EXPECT_EQ(&Task::Current().worker(), worker_.get());
    EXPECT_EQ(Worker::Current(), worker_.get());
  });
  EXPECT_FALSE(Task::InTask());
}

TEST_F(TaskTest, Park_ReturnsAtOnceWhenUnparkCameFirst) {
  Run([] {
    Task::Current().Unpark();
    Task::Park();
  });
}

TEST_F(TaskTest, Park_LetsOthersRun) {
  std::string order;
  Task* first = nullptr;
  std::promise<void> done;
  worker_->Spawn([&] {
    first = &Task::Current();
    order += "a";
    Task::Park();
    order += "c";
    done.set_value();
  });
  worker_->Spawn([&] {
    order += "b";
    first->Unpark();
  });
  done.get_future().wait();
  EXPECT_EQ(order, "abc");
}

TEST_F(TaskTest, ParkUntil_TimesOutWithoutPermit) {
  Run([] {
    const auto begin = steady_clock::now();
    EXPECT_FALSE(Task::ParkUntil(begin + milliseconds(5)));
    EXPECT_GE(steady_clock::now() - begin, milliseconds(5));
  });
}

TEST_F(TaskTest, ParkUntil_TakesPermitBeforeDeadline) {
  std::promise<Task*> parked;
  std::promise<bool> result;
  worker_->Spawn([&] {
    parked.set_value(&Task::Current());
    result.set_value(Task::ParkUntil(steady_clock::now() + std::chrono::hours(1)));
  });
  parked.get_future().get()->Unpark();
  EXPECT_TRUE(result.get_future().get());
}

TEST_F(TaskTest, Yield_RunsTheOthersFirst) {
  std::string order;
  std::promise<void> done;
  worker_->Post([&] {  // both in one go, so that the first cannot end before the second is there
    worker_->Spawn([&] {
      order += "a";
      Task::Yield();
      order += "c";
      done.set_value();
    });
    worker_->Spawn([&] { order += "b"; });
  });
  done.get_future().wait();
  EXPECT_EQ(order, "abc");
}

// Two threads hand a token to a task and wait for it to come back, as fast as they can: no permit may be lost.
TEST_F(TaskTest, Unpark_FromOtherThreadsIsNeverLost) {
  constexpr int kRounds = 20000;
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; t++) {
    threads.emplace_back([&] {
      std::atomic<int> given{0};
      std::atomic<int> taken{0};
      std::promise<Task*> started;
      std::promise<void> ended;
      worker_->Spawn([&] {
        started.set_value(&Task::Current());
        for (int i = 1; i <= kRounds; i++) {
          while (given.load(std::memory_order_relaxed) < i) {
            Task::Park();
          }
          taken.store(i);
        }
        ended.set_value();
      });
      Task* const task = started.get_future().get();
      for (int i = 1; i <= kRounds; i++) {
        given.store(i, std::memory_order_relaxed);
        task->Unpark();
        if (i % 16 == 0) {
          while (taken.load() < i) {
            std::this_thread::yield();
          }
        }
      }
      ended.get_future().wait();
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

TEST_F(TaskTest, Spawn_ManyTasksReuseStacksAndEnd) {
  std::atomic<int> ended{0};
  for (int i = 0; i < 2000; i++) {
    worker_->Spawn([&] {
      Task::Yield();
      char bytes[4096];
      bytes[ended.load() % 4096] = 1;
      asm volatile("" : : "r"(bytes) : "memory");
      ended++;
    });
  }
  worker_->Stop();
  EXPECT_EQ(ended, 2000);
}

TEST(Worker, Spawn_BeyondMaxTasksWaitsForOneToEnd) {
  auto worker = Worker::Create({.max_tasks = 2});
  ASSERT_TRUE(worker.ok());
  std::atomic<int> running{0};
  std::atomic<int> most{0};
  for (int i = 0; i < 20; i++) {
    (*worker)->Spawn([&] {
      most = std::max(most.load(), ++running);
      Task::Yield();
      Task::Yield();
      running--;
    });
  }
  (*worker)->Start();
  (*worker)->Stop();
  EXPECT_EQ(most, 2);
  EXPECT_EQ(running, 0);
}

class EventFdSource final : public EventSource {
 public:
  explicit EventFdSource(std::function<void()> handler) : handler_(std::move(handler)) {}
  bool Poll() override {
    uint64_t count = 0;
    if (polls_enabled && read(fd_.get(), &count, sizeof(count)) == sizeof(count)) {
      handler_();
      return true;
    }
    return false;
  }
  bool Arm() override {
    arms++;
    return true;
  }
  void Disarm() override { polls_enabled = true; }
  int fd() const override { return fd_.get(); }
  void Signal() {
    const uint64_t one = 1;
    ASSERT_EQ(write(fd_.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  }
  bool polls_enabled = false;
  std::atomic<int> arms{0};

 private:
  UniqueFd fd_{eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  std::function<void()> handler_;
};

TEST(Worker, Sleep_IsEndedByAnArmedSource) {
  std::promise<void> handled;
  EventFdSource source([&] { handled.set_value(); });
  auto worker = Worker::Create({});
  ASSERT_TRUE(worker.ok());
  ASSERT_TRUE((*worker)->AddSource(source).ok());
  (*worker)->Start();
  while (source.arms == 0) {
    std::this_thread::yield();
  }
  source.Signal();
  handled.get_future().wait();  // Poll finds it only after Sleep returned
  (*worker)->Stop();
}

TEST(Worker, Sleep_IsEndedByAPost) {
  EventFdSource source([] {});
  auto worker = Worker::Create({.longest_sleep = std::chrono::hours(1)});
  ASSERT_TRUE(worker.ok());
  ASSERT_TRUE((*worker)->AddSource(source).ok());
  (*worker)->Start();
  for (int i = 1; i < 200; i++) {
    while (source.arms < i) {  // about to sleep, or asleep
      std::this_thread::yield();
    }
    std::promise<void> done;
    (*worker)->Post([&] { done.set_value(); });
    ASSERT_EQ(done.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  }
  (*worker)->Stop();
}

}  // namespace
}  // namespace termfs::tlib::server
