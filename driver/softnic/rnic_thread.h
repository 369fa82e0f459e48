// SPDX-License-Identifier: Apache-2.0
//
// RnicThread: the thread of a Nic. It serves the ports of the queue pairs, and where there is a network does what
// an RNIC does there (network/network.h). It never touches a work request between processes of one host.
//
// Thread-safety: any thread.
// Ownership:     a watched port lives at least until it is unwatched. The destructor ends the thread.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "base/event_loop.h"
#include "base/result.h"
#include "driver/softnic/port.h"

namespace termfs::driver::softnic {

class RnicThread {
 public:
  // Also keeps `registry` serving; null: it is one more thread, for streams only (network/stream_loop.h).
  static Result<std::shared_ptr<RnicThread>> Create(std::shared_ptr<Registry> registry);
  ~RnicThread();
  RnicThread(const RnicThread&) = delete;
  RnicThread& operator=(const RnicThread&) = delete;

  void Watch(std::shared_ptr<Port> port);
  void Unwatch(std::shared_ptr<Port> port);
  // Calls `readable` on the thread whenever `fd` is. After Unwatch and Barrier it is not called any more.
  void Watch(int fd, std::function<void()> readable);
  void Unwatch(int fd);
  void Post(std::function<void()> task) { loop_->Post(std::move(task)); }
  // As Post; on the thread itself at once.
  void Run(std::function<void()> task);
  // Returns when everything that the thread was doing at the time of the call is done. On the thread itself: at once.
  void Barrier();

 private:
  RnicThread() = default;

  std::unique_ptr<EventLoop> loop_;
  std::thread thread_;
};

}  // namespace termfs::driver::softnic
