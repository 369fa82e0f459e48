// SPDX-License-Identifier: Apache-2.0
//
// HeatMap: how often each page of a region was accessed, aged; 4 bytes per page accessed. Ageing walks over no pages:
// an access counts with a weight that grows, so what was counted earlier counts less by comparison. A histogram of
// heats over logarithmic buckets is kept along, so that the heat of the D-th hottest page is known without sorting.
//
// Thread-safety: any thread. Heats and buckets are atomic, each by itself; growth of the weight beyond its range, once
// in
//                about a hundred half-lives, stops everybody for one walk over the pages.
// Units:         Heat() and Threshold() in accesses, as if they had happened just now.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/mutex.h"
#include "base/page.h"
#include "tlib/server/sparse_array.h"

namespace termfs::tlib::server {

class HeatMap {
 public:
  // `max_pages`: what Resize may go to.
  HeatMap(uint64_t pages, uint64_t max_pages);
  HeatMap(const HeatMap&) = delete;
  HeatMap& operator=(const HeatMap&) = delete;

  uint64_t pages() const { return pages_.load(std::memory_order_relaxed); }
  // Pages that are beyond the end then have no heat, and get none.
  void Resize(uint64_t pages) EXCLUDES(range_mutex_);
  // REQUIRES here and below: page < max_pages.
  void Add(PageIndex page, uint32_t accesses) EXCLUDES(range_mutex_);
  float Heat(PageIndex page) const;
  // All heats shrink to `factor` (0 < factor <= 1) of what they were.
  void Age(double factor) EXCLUDES(range_mutex_);
  // A heat that at most `count` pages exceed, to a precision of an eighth of an octave; 0 when fewer pages have any.
  float Threshold(uint64_t count) const;
  // Variance of the heats over their mean: about 1 or less when nothing but chance tells the pages apart.
  double Dispersion() const;

 private:
  static constexpr int kBucketShift = 20;  // keeps the exponent and 3 bits of the mantissa
  static constexpr size_t kBuckets = size_t{1} << (31 - kBucketShift);

  void Renormalise() REQUIRES(range_mutex_);
  static size_t BucketOf(uint32_t bits) { return bits >> kBucketShift; }

  std::atomic<uint64_t> pages_;                     // changes with range_mutex_ held
  const SparseArray<std::atomic<uint32_t>> heats_;  // bits of floats >= 0, in units of 1 / weight_
  std::array<std::atomic<uint64_t>, kBuckets> buckets_{};
  std::atomic<float> weight_;
  SharedMutex range_mutex_;  // shared: adding with the current weight; exclusive: changing weight_
};

}  // namespace termfs::tlib::server
