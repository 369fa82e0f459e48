// SPDX-License-Identifier: Apache-2.0
//
// ActivityBell: wakes the session thread of a session that has not been used for a while, when it is used again. What
// rings it costs a load otherwise.
//
// Thread-safety: Ring from any thread; the rest from one, the session's.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "base/result.h"
#include "base/unique_fd.h"

namespace termfs::tlib::client {

class ActivityBell {
 public:
  Status Create() {
    event_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    return event_.valid() ? Status::Ok() : ErrnoStatus("create an eventfd");
  }

  void Ring() {
    if (awaited_.load(std::memory_order_relaxed) && awaited_.exchange(false, std::memory_order_relaxed)) {
      const uint64_t one = 1;
      [[maybe_unused]] const ssize_t put = write(event_.get(), &one, sizeof(one));  // full: it rings already
    }
  }

  // From now on fd() becomes readable at the next Ring.
  void Await() { awaited_.store(true, std::memory_order_relaxed); }
  // After a wait, or when it is over for another reason.
  void Silence() {
    awaited_.store(false, std::memory_order_relaxed);
    Drain();
  }
  // After a wait that goes on: a Ring of the wait before may have been late, and has made fd() readable since.
  void Settle() {
    Drain();
    if (rung()) {  // and what was drained may have been its
      const uint64_t one = 1;
      [[maybe_unused]] const ssize_t put = write(event_.get(), &one, sizeof(one));
    }
  }
  bool rung() const { return !awaited_.load(std::memory_order_relaxed); }  // since Await
  int fd() const { return event_.get(); }

 private:
  void Drain() {
    uint64_t rings = 0;
    [[maybe_unused]] const ssize_t got = read(event_.get(), &rings, sizeof(rings));  // EAGAIN: there was none
  }

  UniqueFd event_;
  std::atomic<bool> awaited_{false};
};

}  // namespace termfs::tlib::client
