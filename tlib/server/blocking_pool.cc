// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/blocking_pool.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "tlib/server/cpus.h"
#include "tlib/server/task.h"
#include "tlib/server/worker.h"

namespace termfs::tlib::server {

Result<std::unique_ptr<BlockingPool>> BlockingPool::Start(uint32_t threads, const std::vector<int>& cpus) {
  std::unique_ptr<BlockingPool> pool(new BlockingPool);
  for (uint32_t i = 0; i < threads; i++) {
    RETURN_IF_ERROR(pool->Add(kAnywhere));
  }
  for (const int cpu : cpus) {
    RETURN_IF_ERROR(pool->Add(cpu));
  }
  return pool;
}

Status BlockingPool::Add(int cpu) {
  auto sleeper = std::make_unique<Sleeper>();
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return ErrnoStatus("make a pipe for a thread of a pool");
  }
  sleeper->cpu = cpu;
  sleeper->sleep = UniqueFd(ends[0]);
  sleeper->bell = UniqueFd(ends[1]);
  sleeper->thread = std::thread([this, &self = *sleeper] { Work(self); });
  sleepers_.push_back(std::move(sleeper));
  return Status::Ok();
}

BlockingPool::~BlockingPool() { Stop(); }

void BlockingPool::SubmitTo(int cpu, std::function<void()> function) {
  const Sleeper* woken = nullptr;
  {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(function));
    woken = TakeAsleep(cpu);
  }
  if (woken != nullptr) {
    Wake(*woken);
  }
}

BlockingPool::Sleeper* BlockingPool::TakeAsleep(int cpu) {
  if (asleep_.empty()) {
    return nullptr;
  }
  const auto on = [this](int wanted) REQUIRES(mutex_) {
    return std::find_if(asleep_.rbegin(), asleep_.rend(), [&](const Sleeper* s) { return s->cpu == wanted; });
  };
  auto found = on(cpu);
  if (found == asleep_.rend()) {
    found = on(kAnywhere);
  }
  if (found == asleep_.rend()) {
    found = asleep_.rbegin();
  }
  Sleeper* const taken = *found;
  asleep_.erase(std::next(found).base());
  return taken;
}

void BlockingPool::Run(const std::function<void()>& function) {
  std::atomic<bool> done{false};
  Task& task = Task::Current();
  const int cpu = Worker::Current()->has_nothing_else() ? sched_getcpu() : kAnywhere;
  const Worker::Elsewhere elsewhere;
  SubmitTo(cpu, [&] {
    function();
    // The task may end as soon as it sees `done`: take what is needed first. Workers, and so tasks, outlive the pool.
    Task& waiter = task;
    done.store(true, std::memory_order_release);
    waiter.Unpark();
  });
  while (!done.load(std::memory_order_acquire)) {
    Task::Park();
  }
}

void BlockingPool::Stop() {
  for (size_t i = 0; i < sleepers_.size(); i++) {
    Submit(nullptr);
  }
  for (const auto& sleeper : sleepers_) {
    sleeper->thread.join();
  }
  sleepers_.clear();
}

void BlockingPool::Wake(const Sleeper& sleeper) {
  const char ring = 0;
  ssize_t put = 0;
  do {
    put = write(sleeper.bell.get(), &ring, sizeof(ring));
  } while (put < 0 && errno == EINTR);
  TERMFS_CHECK(put == sizeof(ring));
}

void BlockingPool::Sleep(const Sleeper& self) {
  char ring = 0;
  ssize_t got = 0;
  do {
    got = read(self.sleep.get(), &ring, sizeof(ring));
  } while (got < 0 && errno == EINTR);
  TERMFS_CHECK(got == sizeof(ring));
}

void BlockingPool::Work(Sleeper& self) {
  if (self.cpu != kAnywhere) {
    BindThisThread(self.cpu);
  }
  while (true) {
    std::function<void()> function;
    bool found = false;
    {
      MutexLock lock(mutex_);
      found = !queue_.empty();
      if (found) {
        function = std::move(queue_.front());
        queue_.pop_front();
      } else {
        asleep_.push_back(&self);
      }
    }
    if (!found) {
      Sleep(self);
    } else if (function) {
      function();
    } else {
      return;
    }
  }
}

}  // namespace termfs::tlib::server
