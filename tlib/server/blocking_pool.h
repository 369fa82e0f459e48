// SPDX-License-Identifier: Apache-2.0
//
// BlockingPool: threads for what may block: RocksDB, control work.
//
// Thread-safety: Submit and Run from any thread. Stop once, by the owner, when nobody submits any more.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace termfs::tlib::server {

class BlockingPool {
 public:
  explicit BlockingPool(uint32_t threads);
  // As Stop.
  ~BlockingPool();
  BlockingPool(const BlockingPool&) = delete;
  BlockingPool& operator=(const BlockingPool&) = delete;

  void Submit(std::function<void()> function) EXCLUDES(mutex_);
  // In a task: runs `function` on one of the threads and parks until it has ended.
  void Run(const std::function<void()>& function);
  // Runs what was submitted and joins. Idempotent.
  void Stop() EXCLUDES(mutex_);

 private:
  void Work() EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> queue_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace termfs::tlib::server
