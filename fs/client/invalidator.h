// SPDX-License-Identifier: Apache-2.0
//
// Invalidator: the thread that has the kernel drop cached pages when the server asks for it, and tells the server when
// that is done. A thread of its own, because the kernel may first write dirty pages back through this very mount, and
// revocations have to be answered meanwhile.
//
// Thread-safety: Push from any thread. Ownership: borrows the cache; owns its channel.
#pragma once

#include <deque>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "fs/client/file_system.h"
#include "fs/proto/data.h"
#include "tlib/client/session.h"

namespace termfs::fs::client {

class Invalidator {
 public:
  Invalidator(KernelCache& cache, std::unique_ptr<tlib::client::Channel> channel);
  ~Invalidator();
  Invalidator(const Invalidator&) = delete;
  Invalidator& operator=(const Invalidator&) = delete;

  void Push(const InvalidateBody& body) EXCLUDES(mutex_);

 private:
  void Run() EXCLUDES(mutex_);

  KernelCache& cache_;
  const std::unique_ptr<tlib::client::Channel> channel_;
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::deque<InvalidateBody> queue_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace termfs::fs::client
