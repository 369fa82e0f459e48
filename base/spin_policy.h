// SPDX-License-Identifier: Apache-2.0
//
// SpinPolicy: how long a thread that waits for events polls before it sleeps. A long spin costs as much of the CPU as it
// lasts, a sleep costs the time of a wake-up; so it polls for long only where most of the last waits would have ended
// within that.
//
//   const auto wait = ...;  // poll for policy.length(), then sleep
//   policy.Waited(wait);
//
// Thread-safety: none.
#pragma once

#include <bit>
#include <chrono>
#include <cstdint>

namespace termfs {

class SpinPolicy {
 public:
  using Duration = std::chrono::nanoseconds;

  // At first it polls for `shortest`.
  SpinPolicy(Duration shortest, Duration longest) : shortest_(shortest), longest_(longest) {}

  Duration length() const { return std::popcount(within_longest_) >= kLikely ? longest_ : shortest_; }
  // From the last event to this one, whether it slept meanwhile or not.
  void Waited(Duration wait) {
    within_longest_ = static_cast<uint8_t>(within_longest_ << 1 | (wait <= longest_ ? 1 : 0));
  }

 private:
  static constexpr int kLikely = 6;  // of the last eight

  const Duration shortest_;
  const Duration longest_;
  uint8_t within_longest_ = 0;  // a bit for each of the last waits
};

}  // namespace termfs
