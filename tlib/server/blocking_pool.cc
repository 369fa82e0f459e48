// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/blocking_pool.h"

#include <atomic>
#include <chrono>

#include "tlib/server/task.h"

namespace termfs::tlib::server {

BlockingPool::BlockingPool(uint32_t threads) {
  for (uint32_t i = 0; i < threads; i++) {
    threads_.emplace_back([this] { Work(); });
  }
}

BlockingPool::~BlockingPool() { Stop(); }

void BlockingPool::Submit(std::function<void()> function) {
  {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(function));
  }
  changed_.NotifyOne();
}

void BlockingPool::Run(const std::function<void()>& function) {
  std::atomic<bool> done{false};
  Task& task = Task::Current();
  Submit([&] {
    function();
    // The task may end as soon as it sees `done`: take what is needed first. Tasks outlive what they run.
    Task& waiter = task;
    done.store(true, std::memory_order_release);
    waiter.Unpark();
  });
  while (!done.load(std::memory_order_acquire)) {
    Task::Park();
  }
}

void BlockingPool::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) {
      thread.join();
    }
  }
}

void BlockingPool::Work() {
  while (true) {
    std::function<void()> function;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !stopping_) {
        changed_.WaitFor(mutex_, std::chrono::seconds(60));
      }
      if (queue_.empty()) {
        return;
      }
      function = std::move(queue_.front());
      queue_.pop_front();
    }
    function();
  }
}

}  // namespace termfs::tlib::server
