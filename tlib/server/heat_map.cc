// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/heat_map.h"

#include <bit>

#include "base/check.h"

namespace termfs::tlib::server {
namespace {

// The weight moves between these; heats are up to 2^32 times as large, well within a float's range of 2^127.
constexpr float kLowestWeight = 0x1.0p-60F;
constexpr float kHighestWeight = 0x1.0p+60F;

}  // namespace

HeatMap::HeatMap(uint64_t pages, uint64_t max_pages) : pages_(pages), heats_(max_pages), weight_(kLowestWeight) {
  buckets_[0].store(pages, std::memory_order_relaxed);
}

void HeatMap::Resize(uint64_t pages) {
  TERMFS_CHECK(pages <= heats_.size());
  WriterLock lock(range_mutex_);
  const uint64_t old_pages = this->pages();
  pages_.store(pages, std::memory_order_relaxed);
  if (pages > old_pages) {
    buckets_[0].fetch_add(pages - old_pages, std::memory_order_relaxed);
  }
  for (uint64_t page = pages; page < old_pages; page++) {
    const uint32_t bits = heats_[page].exchange(0, std::memory_order_relaxed);
    buckets_[BucketOf(bits)].fetch_sub(1, std::memory_order_relaxed);
  }
}

void HeatMap::Add(PageIndex page, uint32_t accesses) {
  ReaderLock lock(range_mutex_);
  if (page.value >= pages()) {
    return;  // the region became smaller just now
  }
  const float more = static_cast<float>(accesses) * weight_.load(std::memory_order_relaxed);
  std::atomic<uint32_t>& cell = heats_[page.value];
  uint32_t old_bits = cell.load(std::memory_order_relaxed);
  uint32_t new_bits = 0;
  do {
    new_bits = std::bit_cast<uint32_t>(std::bit_cast<float>(old_bits) + more);
  } while (!cell.compare_exchange_weak(old_bits, new_bits, std::memory_order_relaxed));
  if (BucketOf(old_bits) != BucketOf(new_bits)) {
    buckets_[BucketOf(old_bits)].fetch_sub(1, std::memory_order_relaxed);
    buckets_[BucketOf(new_bits)].fetch_add(1, std::memory_order_relaxed);
  }
}

float HeatMap::Heat(PageIndex page) const {
  return std::bit_cast<float>(heats_[page.value].load(std::memory_order_relaxed)) /
         weight_.load(std::memory_order_relaxed);
}

void HeatMap::Age(double factor) {
  TERMFS_CHECK(factor > 0 && factor <= 1);
  WriterLock lock(range_mutex_);
  weight_.store(static_cast<float>(weight_.load(std::memory_order_relaxed) / factor), std::memory_order_relaxed);
  if (weight_.load(std::memory_order_relaxed) > kHighestWeight) {
    Renormalise();
  }
}

void HeatMap::Renormalise() {
  const float scale = kLowestWeight / weight_.load(std::memory_order_relaxed);
  for (std::atomic<uint64_t>& bucket : buckets_) {
    bucket.store(0, std::memory_order_relaxed);
  }
  for (uint64_t page = 0; page < pages(); page++) {
    const uint32_t bits =
        std::bit_cast<uint32_t>(std::bit_cast<float>(heats_[page].load(std::memory_order_relaxed)) * scale);
    heats_[page].store(bits, std::memory_order_relaxed);
    buckets_[BucketOf(bits)].fetch_add(1, std::memory_order_relaxed);
  }
  weight_.store(kLowestWeight, std::memory_order_relaxed);
}

double HeatMap::Dispersion() const {
  const double weight = weight_.load(std::memory_order_relaxed);
  double sum = 0;
  double squares = 0;
  for (size_t bucket = 1; bucket < kBuckets - 1; bucket++) {
    const auto pages = static_cast<double>(buckets_[bucket].load(std::memory_order_relaxed));
    if (pages > 0) {
      const auto low = std::bit_cast<float>(static_cast<uint32_t>(bucket) << kBucketShift);
      const auto high = std::bit_cast<float>(static_cast<uint32_t>(bucket + 1) << kBucketShift);
      const double heat = (double{low} + double{high}) / 2 / weight;
      sum += pages * heat;
      squares += pages * heat * heat;
    }
  }
  const double mean = sum / static_cast<double>(pages());
  return mean > 0 ? squares / static_cast<double>(pages()) / mean - mean : 0;
}

float HeatMap::Threshold(uint64_t count) const {
  uint64_t above = 0;
  for (size_t bucket = kBuckets; bucket-- > 1;) {
    above += buckets_[bucket].load(std::memory_order_relaxed);
    if (above > count) {
      const auto upper = std::bit_cast<float>(static_cast<uint32_t>(bucket + 1) << kBucketShift);
      return upper / weight_.load(std::memory_order_relaxed);
    }
  }
  return 0;
}

}  // namespace termfs::tlib::server
