// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/blocking_pool.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>

#include "base/check.h"
#include "tlib/server/task.h"
#include "tlib/server/worker.h"

namespace termfs::tlib::server {

Result<std::unique_ptr<BlockingPool>> BlockingPool::Start(uint32_t threads) {
  std::unique_ptr<BlockingPool> pool(new BlockingPool);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return ErrnoStatus("make the pipe of a thread pool");
  }
  pool->sleep_ = UniqueFd(ends[0]);
  pool->bell_ = UniqueFd(ends[1]);
  for (uint32_t i = 0; i < threads; i++) {
    pool->threads_.emplace_back([raw = pool.get()] { raw->Work(); });
  }
  return pool;
}

BlockingPool::~BlockingPool() { Stop(); }

void BlockingPool::Submit(std::function<void()> function) {
  {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(function));
  }
  const char ring = 0;
  ssize_t put = 0;
  do {
    put = write(bell_.get(), &ring, sizeof(ring));
  } while (put < 0 && errno == EINTR);
  TERMFS_CHECK(put == sizeof(ring));  // where the pipe is full, with tens of thousands of things to do, it waits
}

void BlockingPool::Run(const std::function<void()>& function) {
  std::atomic<bool> done{false};
  Task& task = Task::Current();
  const Worker::Elsewhere elsewhere;
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
  for (size_t i = 0; i < threads_.size(); i++) {
    Submit(nullptr);
  }
  for (std::thread& thread : threads_) {
    thread.join();
  }
  threads_.clear();
}

void BlockingPool::Sleep() {
  char ring = 0;
  ssize_t got = 0;
  do {
    got = read(sleep_.get(), &ring, sizeof(ring));
  } while (got < 0 && errno == EINTR);
  TERMFS_CHECK(got == sizeof(ring));
}

void BlockingPool::Work() {
  while (true) {
    Sleep();
    std::function<void()> function;
    {
      MutexLock lock(mutex_);
      function = std::move(queue_.front());  // there is one for each ring
      queue_.pop_front();
    }
    if (!function) {
      return;
    }
    function();
  }
}

}  // namespace termfs::tlib::server
