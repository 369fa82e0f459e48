// SPDX-License-Identifier: Apache-2.0
//
// Seldom: lets a line of the log through once in an interval, and counts the others.
//
//   if (const auto left_out = seldom.Next()) {
//     LOG_WARNING("... ({} more since the last such line)", *left_out);
//   }
//
// Thread-safety: any thread. Borrows the clock.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"

namespace termfs {

class Seldom {
 public:
  explicit Seldom(Nanoseconds interval, const Clock& clock = Clock::System()) : clock_(clock), interval_(interval) {}

  // How many were left out since the last that was let through; nothing: this one is left out, too.
  std::optional<uint64_t> Next() EXCLUDES(mutex_) {
    const BootTime now = clock_.Now();
    MutexLock lock(mutex_);
    if (last_.has_value() && now - *last_ < interval_) {
      ++left_out_;
      return std::nullopt;
    }
    last_ = now;
    return std::exchange(left_out_, 0);
  }

 private:
  const Clock& clock_;
  const Nanoseconds interval_;
  Mutex mutex_;
  std::optional<BootTime> last_ GUARDED_BY(mutex_);
  uint64_t left_out_ GUARDED_BY(mutex_) = 0;
};

}  // namespace termfs
