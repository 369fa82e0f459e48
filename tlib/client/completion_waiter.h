// SPDX-License-Identifier: Apache-2.0
//
// CompletionWaiter: how a channel's thread waits for completions: it spins for a short while, because most answers are
// faster than a sleep and a wake-up, and then sleeps on the completion channel. The spin is shortened when it finds
// nothing time after time (the SSD is slow), and restored when sleeping turned out to be short.
//
// Thread-safety: the channel's thread.
// Errors:        ETIMEDOUT at the deadline; ENOTCONN when the session was lost meanwhile; EINTR when the interruption
//                was requested, which is found out before a sleep and during it: what is quick is not interrupted.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>

#include "base/interruption.h"
#include "base/result.h"
#include "driver/nic.h"
#include "tlib/client/session_core.h"

namespace termfs::tlib::client {

// When the waits of one call end: so long after the first of them that has to sleep, or at a given time. What is
// answered before needs no clock.
//
// Thread-safety: the channel's thread.
class Deadline {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  explicit Deadline(std::chrono::nanoseconds timeout) : timeout_(timeout) {}
  explicit Deadline(TimePoint at) : timeout_(0), at_(at) {}
  // From the first call on the time runs.
  TimePoint At() {
    if (at_ == TimePoint{}) {
      at_ = std::chrono::steady_clock::now() + timeout_;
    }
    return at_;
  }

 private:
  const std::chrono::nanoseconds timeout_;
  TimePoint at_{};
};

class CompletionWaiter {
 public:
  using TimePoint = Deadline::TimePoint;

  // `interruption` may be null.
  explicit CompletionWaiter(SessionCore& core, Interruption* interruption = nullptr)
      : core_(core), interruption_(interruption) {}

  // Calls `poll` (which polls `queue`) until it returns true. `soon`: without the SSD, so that spinning may pay.
  template <typename Poll>
  Status Wait(driver::CompletionQueue& queue, Poll&& poll, Deadline& deadline, bool soon) {
    return Wait(queue, poll, deadline, soon, interruption_);
  }
  // The same for what must not be left before it has ended.
  template <typename Poll>
  Status WaitUninterrupted(driver::CompletionQueue& queue, Poll&& poll, Deadline& deadline) {
    return Wait(queue, poll, deadline, true, nullptr);
  }

 private:
  template <typename Poll>
  Status Wait(driver::CompletionQueue& queue, Poll& poll, Deadline& deadline, bool soon, Interruption* interruption) {
    while (true) {
      if (Spin(poll, soon ? std::min<std::chrono::nanoseconds>(spin_, kSpinAlone) : std::chrono::nanoseconds(0),
               false)) {
        return Status::Ok();
      }
      if (soon && spin_ > kSpinAlone && !server_sleeps_ && SpinOn(poll)) {
        return Status::Ok();
      }
      if (!queue.Arm()) {
        continue;
      }
      const Status slept = Sleep(queue, deadline, soon, interruption);
      queue.Disarm();
      if (!slept.ok()) {
        return poll() ? Status::Ok() : slept;
      }
    }
  }

  // Of many threads that wait only some go on for long: see "Who waits gives way".
  template <typename Poll>
  bool SpinOn(Poll& poll) {
    const bool longer = core_.BeginSpinning();
    const std::chrono::nanoseconds left = spin_ - kSpinAlone;
    const bool found = Spin(poll, longer ? left : std::min<std::chrono::nanoseconds>(left, kSpinAmongMany), true);
    if (longer) {
      core_.EndSpinning();
    }
    return found;
  }

  // Polls for `length`, at least once. With `yields` whoever else waits for this CPU may run in between: it may be the
  // server, woken where it was called.
  template <typename Poll>
  bool Spin(Poll& poll, std::chrono::nanoseconds length, bool yields) {
    TimePoint end{};  // set after the first polls: the fastest answers are there by then
    do {
      if (yields) {
        sched_yield();
      }
      for (int i = 0; i < kPollsPerClockRead; i++) {
        if (poll()) {
          return true;
        }
        __builtin_ia32_pause();
      }
      if (end == TimePoint{}) {
        const TimePoint now = std::chrono::steady_clock::now();
        end = now + length;
        server_sleeps_ = yields ? server_sleeps_ : core_.NoteWait(now);
      }
    } while (std::chrono::steady_clock::now() < end);
    return false;
  }

  static constexpr int kPollsPerClockRead = 16;

  // Until the queue's descriptor is readable, the session is lost, the interruption requested, or the deadline come.
  Status Sleep(driver::CompletionQueue& queue, Deadline& deadline, bool soon, Interruption* interruption);

  SessionCore& core_;
  Interruption* const interruption_;
  std::chrono::nanoseconds spin_{kMaxSpin};
  bool server_sleeps_ = false;  // probably: to be woken takes it longer than a spin should last
  int vain_spins_ = 0;
  static constexpr std::chrono::microseconds kMaxSpin{200};       // a write of 1 MiB to memory takes about 100
  static constexpr std::chrono::microseconds kSpinAlone{5};       // an answer from memory, by a server that is awake
  static constexpr std::chrono::microseconds kSpinAmongMany{50};  // when others wait as well
};

}  // namespace termfs::tlib::client
