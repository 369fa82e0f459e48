// SPDX-License-Identifier: Apache-2.0
#include "base/metrics.h"

#include <cmath>

namespace termfs {

uint64_t Histogram::UpperBound(int bucket) {
  const int exponent = (bucket >> kSubBits) - 1;
  const uint64_t sub = static_cast<uint64_t>(bucket) & ((1U << kSubBits) - 1);
  if (exponent < 0) {
    return sub;
  }
  return (((uint64_t{1} << kSubBits) + sub + 1) << exponent) - 1;
}

uint64_t Histogram::count() const {
  uint64_t sum = 0;
  for (const auto& bucket : buckets_) {
    sum += bucket.load(std::memory_order_relaxed);
  }
  return sum;
}

Buckets Histogram::buckets() const {
  Buckets found;
  for (uint32_t i = 0; i < kBuckets; i++) {
    if (const uint64_t count = buckets_[i].load(std::memory_order_relaxed); count > 0) {
      found.emplace_hint(found.end(), i, count);
    }
  }
  return found;
}

uint64_t PercentileOf(const Buckets& buckets, double fraction) {
  uint64_t total = 0;
  for (const auto& [bucket, count] : buckets) {
    total += count;
  }
  if (total == 0) {
    return 0;
  }
  // A product such as 0.07 * 100 comes out a little above the whole number that it is; that must not cost a rank.
  const double rank = fraction * static_cast<double>(total);
  const auto wanted = static_cast<uint64_t>(std::ceil(rank - rank * 1e-12));
  uint64_t seen = 0;
  for (const auto& [bucket, count] : buckets) {
    seen += count;
    if (seen >= wanted) {
      return Histogram::UpperBound(static_cast<int>(bucket));
    }
  }
  return Histogram::UpperBound(static_cast<int>(buckets.rbegin()->first));
}

Counter& MetricsRegistry::counter(std::string_view name) {
  MutexLock lock(mutex_);
  for (auto& named : counters_) {
    if (named.name == name) {
      return named.metric;
    }
  }
  return counters_.emplace_back(name).metric;
}

Histogram& MetricsRegistry::histogram(std::string_view name) {
  MutexLock lock(mutex_);
  for (auto& named : histograms_) {
    if (named.name == name) {
      return named.metric;
    }
  }
  return histograms_.emplace_back(name).metric;
}

std::vector<MetricValue> MetricsRegistry::Snapshot() const {
  MutexLock lock(mutex_);
  std::vector<MetricValue> values;
  for (const auto& named : counters_) {
    values.push_back({named.name, named.metric.value()});
  }
  for (const auto& named : histograms_) {
    Buckets buckets = named.metric.buckets();
    values.push_back({named.name + "_p50_ns", PercentileOf(buckets, 0.50)});
    values.push_back({named.name + "_p99_ns", PercentileOf(buckets, 0.99)});
    values.push_back({named.name + "_p999_ns", PercentileOf(buckets, 0.999)});
    const uint64_t count = named.metric.count();
    values.push_back({named.name + "_count", count, std::move(buckets)});
  }
  return values;
}

}  // namespace termfs
