// SPDX-License-Identifier: Apache-2.0
//
// PatternSwitch: which magic patterns clients have to recognise, and the change from one to another: all clients are
// told {new, former} and acknowledge; the RNIC takes over the new one; all clients are told to forget the former. A
// client that does not acknowledge in time is expelled and gone before the next step, for it would take magic for data.
//
// Thread-safety: any thread; Switch not on a worker's. It blocks; a second one at the same time is refused with EBUSY.
// Ownership:     refers to workers, sessions and region.
#pragma once

#include <optional>

#include "base/mutex.h"
#include "base/result.h"
#include "driver/nic.h"
#include "tlib/server/region.h"
#include "tlib/server/session_table.h"
#include "tlib/server/tell_clients.h"
#include "tlib/server/worker_set.h"

namespace termfs::tlib::server {

class PatternSwitch {
 public:
  struct Known {
    driver::Pattern current;
    std::optional<driver::Pattern> former;
  };

  PatternSwitch(WorkerSet& workers, SessionTable& sessions, Region& region)
      : workers_(workers), sessions_(sessions), region_(region), known_{region.term().pattern(), std::nullopt} {}

  Known known() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return known_;
  }
  Status Switch(const driver::Pattern& pattern, const ExpelClient& expel) EXCLUDES(mutex_);

 private:
  void SetKnown(const Known& known) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    known_ = known;
  }
  Status SwitchInTurn(const driver::Pattern& pattern, const ExpelClient& expel);
  Status Tell(const Known& known, const ExpelClient& expel);

  WorkerSet& workers_;
  SessionTable& sessions_;
  Region& region_;
  mutable Mutex mutex_;
  Known known_ GUARDED_BY(mutex_);
  bool switching_ GUARDED_BY(mutex_) = false;
};

}  // namespace termfs::tlib::server
