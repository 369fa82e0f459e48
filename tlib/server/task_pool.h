// SPDX-License-Identifier: Apache-2.0
//
// TaskPool: the tasks of one worker. A task keeps its coroutine and stack when what it ran has ended, and takes the
// next function; so a request costs no allocation of a stack. Of many that came at once the stacks go back in time.
// Stacks are kStackBytes with an inaccessible page below, so an overflow is a clean fault, never a neighbour's bytes.
// Deep library calls (RocksDB) do not belong on them: Call::RunBlocking.
//
// Thread-safety: the worker's thread only.
// Ownership:     owns the tasks. REQUIRES at destruction: running() == 0.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "tlib/server/task.h"

namespace termfs::tlib::server {

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr size_t kStackBytes = 512 << 10;  // instrumented frames are several times as large
#define TERMFS_STACK_BYTES_SET
#endif
#endif
#if !defined(TERMFS_STACK_BYTES_SET)
inline constexpr size_t kStackBytes = 128 << 10;
#endif
#undef TERMFS_STACK_BYTES_SET

class CoroutineTask;

class TaskPool {
 public:
  // At most `max_tasks` run at a time.
  TaskPool(Worker& worker, size_t max_tasks);
  ~TaskPool();
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  // Runs `function` in a task until it parks for the first time. ENOMEM: no task or no stack to be had, nothing ran;
  // `function` is untouched then.
  Status Start(std::function<void()>& function);
  // Goes on with a task whose permit was given.
  void Resume(CoroutineTask& task);
  // Takes a parked task out of its wait; false: a permit came first.
  static bool TimeOut(CoroutineTask& task);

  size_t running() const { return running_; }
  // Gives back stacks of tasks that were idle since the last call, but for a few. Not from a task.
  void Trim();

 private:
  friend class CoroutineTask;
  static constexpr size_t kStacksThatStay = 16;
  static constexpr size_t kReleasedAtOnce = 64;
  Worker& worker_;
  const size_t max_tasks_;
  size_t running_ = 0;
  std::vector<std::unique_ptr<CoroutineTask>> tasks_;
  std::vector<CoroutineTask*> idle_;  // the last to become idle runs first
  size_t least_idle_ = 0;             // since the last Trim
};

}  // namespace termfs::tlib::server
