// SPDX-License-Identifier: Apache-2.0
//
// A condition variable for coroutines: a task that waits gives its worker to others.
//
// Thread-safety: NotifyAll from any thread, with the mutex held, so that a task cannot end while it is being woken.
//                WaitUntil inside a task. It may return early: wait in a loop over the condition.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/mutex.h"
#include "tlib/server/task.h"

namespace termfs::fs::server {

using Deadline = std::chrono::steady_clock::time_point;

class TaskCondition {
 public:
  // Returns false when the deadline passed.
  bool WaitUntil(Mutex& mutex, Deadline deadline) REQUIRES(mutex) {
    tlib::server::Task* task = &tlib::server::Task::Current();
    waiters_.push_back(task);
    mutex.Unlock();
    const bool woken = tlib::server::Task::ParkUntil(deadline);
    mutex.Lock();
    std::erase(waiters_, task);
    return woken;
  }
  // REQUIRES: the mutex that the waiters gave is held.
  void NotifyAll() {
    for (tlib::server::Task* task : waiters_) {
      task->Unpark();
    }
  }

 private:
  std::vector<tlib::server::Task*> waiters_;
};

}  // namespace termfs::fs::server
