// SPDX-License-Identifier: Apache-2.0
//
// BackgroundTask: a task that does rounds of work, when it is kicked and now and then.
//
// Thread-safety: Kick from any thread; Start once; Stop in a task, after Start or instead of it.
// Ownership:     REQUIRES at destruction: stopped, or never started.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>

#include "base/mutex.h"
#include "tlib/server/region.h"
#include "tlib/server/task.h"

namespace termfs::tlib::server {

class BackgroundTask {
 public:
  // One round; returns how long to wait for a kick before the next one.
  using Round = std::function<std::chrono::milliseconds()>;

  explicit BackgroundTask(Round round) : round_(std::move(round)) {}
  ~BackgroundTask();
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  void Start(const Spawner& spawn) EXCLUDES(mutex_);
  void Kick() EXCLUDES(mutex_);
  // Returns when the round that runs has ended, and no other will begin.
  void Stop() EXCLUDES(mutex_);
  // For long rounds, to end early.
  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }

 private:
  void Loop() EXCLUDES(mutex_);

  const Round round_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> kicked_{false};  // set by Kick, taken before a round: a kick during a round makes another one
  Mutex mutex_;
  bool running_ GUARDED_BY(mutex_) = false;
  Task* task_ GUARDED_BY(mutex_) = nullptr;
  Task* stopper_ GUARDED_BY(mutex_) = nullptr;
};

}  // namespace termfs::tlib::server
