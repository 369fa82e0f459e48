// SPDX-License-Identifier: Apache-2.0
//
// Invalidator: a thread that has the kernel drop what it caches when the server asks for it, and tells the server when
// that is done. A thread of its own, because the kernel may first write dirty pages back through this very mount, or
// wait for locks of its requests, and revocations have to be answered meanwhile.
//
// Thread-safety: Push from any thread. Ownership: owns its channel; what the work uses outlives it.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "tlib/client/session.h"

namespace termfs::fs::client {

class Invalidator {
 public:
  explicit Invalidator(std::unique_ptr<tlib::client::Channel> channel);
  ~Invalidator();
  Invalidator(const Invalidator&) = delete;
  Invalidator& operator=(const Invalidator&) = delete;

  // Does `work` after what was pushed before, and acknowledges the ticket.
  void Push(uint64_t ticket, std::function<void()> work) EXCLUDES(mutex_);

 private:
  struct Item {
    uint64_t ticket;
    std::function<void()> work;
  };
  void Run() EXCLUDES(mutex_);

  const std::unique_ptr<tlib::client::Channel> channel_;
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::deque<Item> queue_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace termfs::fs::client
