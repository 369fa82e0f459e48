// SPDX-License-Identifier: Apache-2.0
//
// Latencies: how often each duration was seen, in the buckets of base's Histogram; without its atomics, so that it can
// be counted in a tight loop, lie in memory that processes share, and be added up.
//
// Thread-safety: none. Units: nanoseconds.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "base/metrics.h"

namespace termfs::benchmarks::term {

class Latencies {
 public:
  void Record(uint64_t nanoseconds) { counts_[static_cast<size_t>(Histogram::BucketOf(nanoseconds))]++; }
  void Add(const Latencies& other) {
    for (size_t i = 0; i < counts_.size(); i++) {
      counts_[i] += other.counts_[i];
    }
  }
  uint64_t count() const {
    uint64_t sum = 0;
    for (const uint64_t count : counts_) {
      sum += count;
    }
    return sum;
  }
  // What `fraction` of them did not exceed; 0 when there are none.
  uint64_t Percentile(double fraction) const {
    const auto wanted = static_cast<uint64_t>(std::ceil(fraction * static_cast<double>(count())));
    uint64_t seen = 0;
    for (size_t i = 0; i < counts_.size(); i++) {
      seen += counts_[i];
      if (seen >= wanted && seen > 0) {
        return Histogram::UpperBound(static_cast<int>(i));
      }
    }
    return 0;
  }

 private:
  std::array<uint64_t, Histogram::kBuckets> counts_{};
};

}  // namespace termfs::benchmarks::term
