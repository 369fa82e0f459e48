// SPDX-License-Identifier: Apache-2.0
//
// SpinPolicy: how long a thread that waits for events polls before it sleeps. Polling costs as much of the CPU as it
// lasts, a sleep costs the time of a wake-up. Of a few lengths it takes the one that would have been the cheapest for
// the last sixteen waits; but the longest where nearly all of them ended within that, since then every sleep makes a
// caller wait who does nothing else.
//
//   const auto wait = ...;  // poll for policy.length(), then sleep
//   policy.Waited(wait);
//
// Thread-safety: none.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace termfs {

class SpinPolicy {
 public:
  using Duration = std::chrono::nanoseconds;

  // At first it polls for the shortest of its lengths, which is 5 us; never for longer than `longest`.
  explicit SpinPolicy(Duration longest) : lengths_{kLengths} {
    lengths_.back() = longest;
    for (Duration& length : lengths_) {
      length = std::min(length, longest);
    }
    classes_.fill(kBeyond);
    counts_[kBeyond] = kWaits;
    length_ = lengths_.front();
  }

  Duration length() const { return length_; }

  // From the last event to this one, whether it slept meanwhile or not.
  void Waited(Duration wait) {
    const auto fits = std::lower_bound(lengths_.begin(), lengths_.end(), wait);
    const auto now = static_cast<uint8_t>(std::distance(lengths_.begin(), fits));
    uint8_t& oldest = classes_[next_];
    next_ = (next_ + 1) % kWaits;
    if (oldest != now) {
      --counts_[oldest];
      ++counts_[now];
      oldest = now;
      length_ = Best();
    }
  }

 private:
  static constexpr std::array<Duration, 5> kLengths = {std::chrono::microseconds(5), std::chrono::microseconds(20),
                                                       std::chrono::microseconds(50), std::chrono::microseconds(100),
                                                       Duration::max()};
  static constexpr size_t kBeyond = kLengths.size();
  static constexpr size_t kWaits = 16;
  static constexpr int kNearlyAll = 14;
  // A sleep, in polling time: it takes some of both CPUs, and a caller waits for longer.
  static constexpr Duration kSleep = std::chrono::microseconds(100);

  // A wait that ends while it polls counts as long as its class may be.
  Duration Best() const {
    if (counts_[kBeyond] <= static_cast<int>(kWaits) - kNearlyAll) {
      return lengths_.back();
    }
    Duration best = lengths_.front();
    Duration least = Duration::max();
    Duration ended{0};
    int slept = kWaits;
    for (size_t i = 0; i < kBeyond; ++i) {
      ended += counts_[i] * lengths_[i];
      slept -= counts_[i];
      const Duration cost = ended + slept * (lengths_[i] + kSleep);
      if (cost < least) {
        least = cost;
        best = lengths_[i];
      }
    }
    return best;
  }

  std::array<Duration, kBeyond> lengths_;
  std::array<uint8_t, kWaits> classes_{};  // of the last waits: the first length that is enough
  std::array<int, kBeyond + 1> counts_{};  // of each class
  size_t next_ = 0;
  Duration length_;
};

}  // namespace termfs
