// SPDX-License-Identifier: Apache-2.0
//
// Invalidator: a thread that has the kernel drop what it caches when the server asks for it, and tells the server when
// that is done. A thread of its own, because the kernel may first write dirty pages back through this very mount, or
// wait for locks of its requests, and revocations have to be answered meanwhile.
//
// Thread-safety: Push from any thread. Ownership: borrows the link; owns its lane; what the work uses outlives it.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "fs/client/server_link.h"
#include "tlib/client/session.h"

namespace termfs::fs::client {

class Invalidator {
 public:
  Invalidator(ServerLink& link, std::unique_ptr<VolumeLane> lane);
  ~Invalidator();
  Invalidator(const Invalidator&) = delete;
  Invalidator& operator=(const Invalidator&) = delete;

  // Does `work` after what was pushed before. If it returns true, acknowledges the ticket in the session of that
  // generation, which gave it. Without a ticket (0) nobody is told.
  void Push(uint64_t ticket, uint64_t generation, std::function<bool()> work) EXCLUDES(mutex_);

 private:
  struct Item {
    uint64_t ticket = 0;
    uint64_t generation = 0;
    std::function<bool()> work{};
  };
  void Run() EXCLUDES(mutex_);

  ServerLink& link_;
  const std::unique_ptr<VolumeLane> lane_;
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::deque<Item> queue_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace termfs::fs::client
