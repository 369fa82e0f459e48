// SPDX-License-Identifier: Apache-2.0
//
// GroupCommit: an action (a device flush, a log sync) carried out once for everybody who asked before it began. Who
// asks while it runs waits for the next round, because the running one may have missed what he did.
//
// Thread-safety: Run in tasks of any workers.
// Errors:        the action's, to everyone of its round.
#pragma once

#include <functional>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "tlib/server/task.h"

namespace termfs::tlib::server {

class GroupCommit {
 public:
  // `action` runs in the task of one of those who wait; never twice at a time.
  explicit GroupCommit(std::function<Status()> action) : action_(std::move(action)) {}
  GroupCommit(const GroupCommit&) = delete;
  GroupCommit& operator=(const GroupCommit&) = delete;

  // Returns when a round of the action that began after this call has ended.
  Status Run() EXCLUDES(mutex_);

 private:
  struct Member {
    Task* task = nullptr;
    bool done = false;
    Status status;
  };

  const std::function<Status()> action_;
  Mutex mutex_;
  bool running_ GUARDED_BY(mutex_) = false;
  std::vector<Member*> waiting_ GUARDED_BY(mutex_);
};

}  // namespace termfs::tlib::server
