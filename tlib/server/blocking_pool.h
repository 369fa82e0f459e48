// SPDX-License-Identifier: Apache-2.0
//
// BlockingPool: threads for what may block: RocksDB, control work. Each sleeps in a read of a pipe of its own, and the
// one that fell asleep last is woken first; beside these there may be one bound to each CPU, for a worker there that
// has nothing else to do: see "Handed over on the same CPU".
//
// Thread-safety: Submit and Run from any thread. Stop once, by the owner, when nobody submits any more.
// Ownership:     of its threads. The workers whose tasks call Run belong to the caller and outlive the pool: a thread
//                may still be waking a task that has ended.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace termfs::tlib::server {

class BlockingPool {
 public:
  // `threads` that run anywhere, and one on each of `cpus`. Errors: no more descriptors.
  static Result<std::unique_ptr<BlockingPool>> Start(uint32_t threads, const std::vector<int>& cpus = {});
  // As Stop.
  ~BlockingPool();
  BlockingPool(const BlockingPool&) = delete;
  BlockingPool& operator=(const BlockingPool&) = delete;

  void Submit(std::function<void()> function) EXCLUDES(mutex_) { SubmitTo(kAnywhere, std::move(function)); }
  // In a task: runs `function` on one of the threads and parks until it has ended.
  void Run(const std::function<void()>& function);
  // Runs what was submitted before and joins. Idempotent.
  void Stop() EXCLUDES(mutex_);

 private:
  static constexpr int kAnywhere = -1;

  struct Sleeper {
    int cpu = kAnywhere;
    UniqueFd bell;   // to be written
    UniqueFd sleep;  // to be read
    std::thread thread;
  };
  BlockingPool() = default;
  Status Add(int cpu);
  void SubmitTo(int cpu, std::function<void()> function) EXCLUDES(mutex_);
  // The one to wake for what is submitted to that CPU; null when all are awake.
  Sleeper* TakeAsleep(int cpu) REQUIRES(mutex_);
  void Work(Sleeper& self) EXCLUDES(mutex_);
  static void Wake(const Sleeper& sleeper);
  static void Sleep(const Sleeper& self);

  Mutex mutex_;
  std::deque<std::function<void()>> queue_ GUARDED_BY(mutex_);  // an empty one ends a thread
  std::vector<Sleeper*> asleep_ GUARDED_BY(mutex_);             // the last one is woken next
  std::vector<std::unique_ptr<Sleeper>> sleepers_;
};

}  // namespace termfs::tlib::server
