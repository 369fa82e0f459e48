// SPDX-License-Identifier: Apache-2.0
//
// HeatMap: how often each page of a region was accessed, aged. Nobody walks over all pages for that: an access counts
// with a weight that grows, so what was counted earlier counts less by comparison. A histogram of heats over
// logarithmic buckets is kept along, so that the heat of the D-th hottest page is known without sorting.
//
// The weight grows through a float's range in a turn of about a hundred half-lives and then begins anew at the lowest;
// it also does where heats are to be forgotten beyond some number of accesses. The cell of a page says in which of two
// turns, this one or the one before, it was stored: what the turn before stored counts as many octaves less as the
// weight went down, and so many accesses at most. So that two are enough, each call of Age brings some cells into the
// turn.
//
// Thread-safety: any thread. Heats and buckets are atomic, each by itself: while others add, Threshold and Dispersion
//                are of no single moment.
// Ownership:     4 bytes of address space per page of max_pages; memory for where pages were accessed.
// Errors:        none.
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
  // Heat(page) is about to be asked.
  void Prefetch(PageIndex page) const { __builtin_prefetch(&heats_[page.value]); }
  // All heats shrink to `factor` (0 < factor <= 1) of what they were.
  void Age(double factor) EXCLUDES(range_mutex_);
  // The same, and to at most `most` accesses. As Age while cells are still to be brought into this turn: it takes one
  // call of Age for each 65536 pages.
  void Forget(double factor, float most) EXCLUDES(range_mutex_);
  // A heat that at most `count` pages exceed, to a precision of an eighth of an octave; 0 when fewer pages have any.
  float Threshold(uint64_t count) const;
  // Variance of the heats over their mean: about 1 or less when nothing but chance tells the pages apart.
  double Dispersion() const;

 private:
  static constexpr int kBucketShift = 20;  // keeps the exponent and 3 bits of the mantissa
  static constexpr size_t kBuckets = size_t{1} << (31 - kBucketShift);

  // What cells are stored with.
  struct Scale {
    float weight;
    uint32_t turn;  // 0 or kTurnBit
  };
  // What the bits of the turn before count in this one: so many less, and so many at most.
  struct alignas(8) Rate {  // so that clang, too, loads both at once
    uint32_t less;
    uint32_t most;
  };
  static constexpr uint32_t kTurnBit = uint32_t{1} << 31;

  Scale scale() const;
  // In this turn.
  static uint32_t Convert(Rate rate, uint32_t bits);
  // The bits of the float that `cell` is in turn `turn`.
  uint32_t BitsIn(uint32_t turn, uint32_t cell) const;
  static size_t BucketOf(uint32_t bits) { return bits >> kBucketShift; }
  void Shrink(double factor) REQUIRES(range_mutex_);
  // Brings the next `pages` cells into this turn.
  void Sweep(uint64_t pages) REQUIRES(range_mutex_);
  // Heats are at most `most` then. REQUIRES: all cells are in this turn.
  void BeginTurn(float most) REQUIRES(range_mutex_);

  std::atomic<uint64_t> pages_;                     // changes with range_mutex_ held
  const SparseArray<std::atomic<uint32_t>> heats_;  // cells: bits of floats >= 0, in units of 1 / weight, and kTurnBit
  std::array<std::atomic<uint64_t>, kBuckets> buckets_{};  // of this turn's bits
  std::atomic<float> weight_;                              // its sign is the turn
  std::atomic<Rate> rate_{};                               // stored before the weight of a turn
  uint64_t swept_ GUARDED_BY(range_mutex_);                // cells from the first one on that are in this turn
  SharedMutex range_mutex_;  // shared: adding with the current weight; exclusive: changing weight_
};

}  // namespace termfs::tlib::server
