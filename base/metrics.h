// SPDX-License-Identifier: Apache-2.0
//
// Counters and latency histograms that a hot path can afford: one relaxed atomic add. (A counter of prometheus-cpp
// is a compare-and-swap loop on a double; it is used where metrics are exported, not where they are counted.)
//
// Thread-safety: Add and Record from any thread; a snapshot is not a cut in time, each value is itself exact.
// Ownership:     a registry owns its metrics; references stay valid as long as it lives.
// Units:         histograms record nanoseconds.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"

namespace termfs {

class Counter {
 public:
  void Add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  alignas(64) std::atomic<uint64_t> value_{0};
};

// How many values a histogram has in each bucket that is not empty, by the bucket's number.
using Buckets = std::map<uint32_t, uint64_t>;

// A value that `fraction` (0 to 1) of the values do not exceed; 0 when there are none.
uint64_t PercentileOf(const Buckets& buckets, double fraction);

// Log-linear buckets: 16 per power of two, so a percentile is exact to about 6%.
class Histogram {
 public:
  static constexpr int kSubBits = 4;
  static constexpr int kBuckets = (64 - kSubBits + 1) << kSubBits;

  void Record(uint64_t nanoseconds) { buckets_[BucketOf(nanoseconds)].fetch_add(1, std::memory_order_relaxed); }
  uint64_t count() const;
  Buckets buckets() const;
  uint64_t Percentile(double fraction) const { return PercentileOf(buckets(), fraction); }

  static int BucketOf(uint64_t value) {
    if (value < (uint64_t{1} << kSubBits)) {
      return static_cast<int>(value);
    }
    const int exponent = std::bit_width(value) - 1 - kSubBits;
    return ((exponent + 1) << kSubBits) + static_cast<int>((value >> exponent) & ((1 << kSubBits) - 1));
  }
  // The largest value that falls into the bucket.
  static uint64_t UpperBound(int bucket);

 private:
  std::atomic<uint64_t> buckets_[kBuckets] = {};
};

struct MetricValue {
  std::string name;  // lower case with underscores; counters end in _total, gauges in their unit
  uint64_t value;
  Buckets buckets{};  // of the histogram, where this is its NAME_count
};

class MetricsRegistry {
 public:
  MetricsRegistry() = default;
  MetricsRegistry(const MetricsRegistry&) = delete;
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  // The metric of that name, made at the first call.
  Counter& counter(std::string_view name) EXCLUDES(mutex_);
  Histogram& histogram(std::string_view name) EXCLUDES(mutex_);

  // Every counter, and of every histogram NAME: NAME_p50_ns, NAME_p99_ns, NAME_p999_ns, NAME_count with the buckets.
  std::vector<MetricValue> Snapshot() const EXCLUDES(mutex_);

 private:
  template <typename T>
  struct Named {
    std::string name;
    T metric;
    explicit Named(std::string_view n) : name(n) {}
  };
  mutable Mutex mutex_;
  std::deque<Named<Counter>> counters_ GUARDED_BY(mutex_);
  std::deque<Named<Histogram>> histograms_ GUARDED_BY(mutex_);
};

}  // namespace termfs
