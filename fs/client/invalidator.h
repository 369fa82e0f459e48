// SPDX-License-Identifier: Apache-2.0
//
// Invalidator: the thread that has the kernel drop cached pages when the server asks for it, and tells the server when
// that is done. A thread of its own, because the kernel may first write dirty pages back through this very mount, and
// revocations have to be answered meanwhile.
//
// Thread-safety: Push from any thread. Ownership: borrows the cache and the link; owns its lane.
#pragma once

#include <deque>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "fs/client/file_system.h"
#include "fs/client/server_link.h"
#include "fs/proto/data.h"
#include "tlib/client/session.h"

namespace termfs::fs::client {

class Invalidator {
 public:
  Invalidator(KernelCache& cache, ServerLink& link, std::unique_ptr<VolumeLane> lane);
  ~Invalidator();
  Invalidator(const Invalidator&) = delete;
  Invalidator& operator=(const Invalidator&) = delete;

  // `generation`: of the session that asks. Without a ticket nobody waits for it.
  void Push(const InvalidateBody& body, uint64_t generation) EXCLUDES(mutex_);

 private:
  struct Item {
    InvalidateBody body;
    uint64_t generation = 0;
  };
  void Run() EXCLUDES(mutex_);

  KernelCache& cache_;
  ServerLink& link_;
  const std::unique_ptr<VolumeLane> lane_;
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::deque<Item> queue_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace termfs::fs::client
