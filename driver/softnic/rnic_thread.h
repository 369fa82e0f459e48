// SPDX-License-Identifier: Apache-2.0
//
// RnicThread: the one thread of a Nic. It serves the ports of the queue pairs and never touches a work request.
//
// Thread-safety: any thread.
// Ownership:     a watched port lives at least until it is unwatched. The destructor ends the thread.
#pragma once

#include <memory>
#include <thread>

#include "base/event_loop.h"
#include "base/result.h"
#include "driver/softnic/port.h"

namespace termfs::driver::softnic {

class RnicThread {
 public:
  static Result<std::shared_ptr<RnicThread>> Create();
  ~RnicThread();
  RnicThread(const RnicThread&) = delete;
  RnicThread& operator=(const RnicThread&) = delete;

  void Watch(std::shared_ptr<Port> port);
  void Unwatch(std::shared_ptr<Port> port);
  // Returns when everything that the thread was doing at the time of the call is done. On the thread itself: at once.
  void Barrier();

 private:
  RnicThread() = default;

  std::unique_ptr<EventLoop> loop_;
  std::thread thread_;
};

}  // namespace termfs::driver::softnic
