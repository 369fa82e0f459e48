// SPDX-License-Identifier: Apache-2.0
//
// A Clock that stands still until a test moves it.
//
// Thread-safety: all methods from any thread.
#pragma once

#include <atomic>

#include "base/clock.h"

namespace termfs::fakes {

class ManualClock final : public Clock {
 public:
  BootTime Now() const override { return {Nanoseconds(since_boot_.load(std::memory_order_relaxed))}; }
  Nanoseconds RealTime() const override { return kEpoch + Now().since_boot; }

  // Both clocks go forward by `step`.
  void Advance(Nanoseconds step) { since_boot_.fetch_add(step.count(), std::memory_order_relaxed); }

 private:
  static constexpr Nanoseconds kEpoch = std::chrono::hours(24 * 365 * 50);  // some time in 2019
  std::atomic<int64_t> since_boot_{1'000'000'000};
};

}  // namespace termfs::fakes
