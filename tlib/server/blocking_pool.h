// SPDX-License-Identifier: Apache-2.0
//
// BlockingPool: threads for what may block: RocksDB, control work. They sleep in a read of a pipe, one byte for each
// thing to do: see "Handed over on the same CPU".
//
// Thread-safety: Submit and Run from any thread. Stop once, by the owner, when nobody submits any more.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace termfs::tlib::server {

class BlockingPool {
 public:
  // Errors: no more descriptors.
  static Result<std::unique_ptr<BlockingPool>> Start(uint32_t threads);
  // As Stop.
  ~BlockingPool();
  BlockingPool(const BlockingPool&) = delete;
  BlockingPool& operator=(const BlockingPool&) = delete;

  void Submit(std::function<void()> function) EXCLUDES(mutex_);
  // In a task: runs `function` on one of the threads and parks until it has ended.
  void Run(const std::function<void()>& function);
  // Runs what was submitted before and joins. Idempotent.
  void Stop() EXCLUDES(mutex_);

 private:
  BlockingPool() = default;
  void Work() EXCLUDES(mutex_);
  void Sleep();

  UniqueFd bell_;   // to be written
  UniqueFd sleep_;  // to be read
  Mutex mutex_;
  std::deque<std::function<void()>> queue_ GUARDED_BY(mutex_);  // an empty one ends a thread
  std::vector<std::thread> threads_;
};

}  // namespace termfs::tlib::server
