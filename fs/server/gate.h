// SPDX-License-Identifier: Apache-2.0
//
// Gate: orders the operations on one inode. Shared: writes that change neither size nor extents. Exclusive: everything
// else that changes the inode. First come, first served, so neither kind starves the other. Whoever is inside may wait
// for clients, for the store and for the SSD; reads never enter.
//
//            Enter(kShared), nobody waits            Enter(kExclusive)
//   shared n ◄──────────────────────────── idle ────────────────────────────► exclusive
//            ──────── n times Leave ─────►      ◄──────── Leave ─────────────
//   Otherwise Enter queues; Leave admits the head of the queue, and all kShared that follow a kShared head.
//
// Thread-safety: Enter inside a task; TryEnter and Leave from any thread.
// Errors:        Enter: ETIMEDOUT, ECANCELED.
#pragma once

#include <atomic>
#include <deque>

#include "base/mutex.h"
#include "base/result.h"
#include "fs/server/task_condition.h"

namespace termfs::fs::server {

enum class GateMode { kShared, kExclusive };

class Gate {
 public:
  // `cancelled` (may be null) is looked at now and then while waiting.
  Status Enter(GateMode mode, Deadline deadline, const std::atomic<bool>* cancelled) EXCLUDES(mutex_);
  // Without waiting; false when it would have to.
  bool TryEnter(GateMode mode) EXCLUDES(mutex_);
  void Leave(GateMode mode) EXCLUDES(mutex_);
  // Somebody is inside.
  bool busy() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return exclusive_ || shared_ > 0;
  }

 private:
  struct Waiter {
    GateMode mode;
    tlib::server::Task* task;
    bool admitted = false;
  };
  bool Free(GateMode mode) const REQUIRES(mutex_) { return !exclusive_ && (mode == GateMode::kShared || shared_ == 0); }
  void Take(GateMode mode) REQUIRES(mutex_);
  void Admit() REQUIRES(mutex_);

  mutable Mutex mutex_;
  uint32_t shared_ GUARDED_BY(mutex_) = 0;
  bool exclusive_ GUARDED_BY(mutex_) = false;
  std::deque<Waiter*> queue_ GUARDED_BY(mutex_);
};

}  // namespace termfs::fs::server
