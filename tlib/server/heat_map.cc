// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/heat_map.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace termfs::tlib::server {
namespace {

// The weight moves between these; heats are up to 2^32 times as large, well within a float's range of 2^127.
constexpr float kLowestWeight = 0x1.0p-60F;
constexpr float kHighestWeight = 0x1.0p+60F;
constexpr uint64_t kPagesPerStep = 16384;  // cells that are walked over while others wait
constexpr uint64_t kPagesPerAge = 65536;   // cells that are brought into the turn at least
constexpr double kSweepOctaves = 100;      // in which all cells are brought into a turn: before the next one begins
constexpr uint32_t kExponentShift = 23;
constexpr float kNoLimit = std::numeric_limits<float>::infinity();

}  // namespace

HeatMap::HeatMap(uint64_t pages, uint64_t max_pages)
    : pages_(pages), heats_(max_pages), weight_(kLowestWeight), swept_(pages) {
  buckets_[0].store(pages, std::memory_order_relaxed);
}

HeatMap::Scale HeatMap::scale() const {
  // Pairs with BeginTurn: whoever sees a turn sees its rate.
  const float signed_weight = weight_.load(std::memory_order_acquire);
  return {.weight = std::abs(signed_weight), .turn = std::signbit(signed_weight) ? kTurnBit : 0};
}

uint32_t HeatMap::Convert(Rate rate, uint32_t bits) {
  const uint32_t least = rate.less == 0 ? 0 : rate.less + (1U << kExponentShift);  // what is smaller would be denormal
  return bits < least ? 0 : std::min(bits - rate.less, rate.most);
}

uint32_t HeatMap::BitsIn(uint32_t turn, uint32_t cell) const {
  const uint32_t bits = cell & ~kTurnBit;
  return (cell & kTurnBit) == turn ? bits : Convert(rate_.load(std::memory_order_relaxed), bits);
}

void HeatMap::Resize(uint64_t pages) {
  TERMFS_CHECK(pages <= heats_.size());
  uint64_t old_pages;
  {
    WriterLock lock(range_mutex_);
    old_pages = this->pages();
    pages_.store(pages, std::memory_order_relaxed);
    if (pages > old_pages) {
      buckets_[0].fetch_add(pages - old_pages, std::memory_order_relaxed);
    }
  }
  // Nobody adds to those any more. In steps, as who adds to others waits meanwhile.
  for (uint64_t begin = pages; begin < old_pages; begin += kPagesPerStep) {
    WriterLock lock(range_mutex_);
    const uint32_t turn = scale().turn;
    for (uint64_t page = begin; page < std::min(old_pages, begin + kPagesPerStep); page++) {
      const uint32_t cell = heats_[page].load(std::memory_order_relaxed);
      if (cell != 0) {  // what was never accessed gets no memory here
        heats_[page].store(0, std::memory_order_relaxed);
      }
      buckets_[BucketOf(BitsIn(turn, cell))].fetch_sub(1, std::memory_order_relaxed);
    }
  }
}

void HeatMap::Add(PageIndex page, uint32_t accesses) {
  ReaderLock lock(range_mutex_);
  if (page.value >= pages()) {
    return;  // the region became smaller just now
  }
  const Scale scale = this->scale();
  const float more = static_cast<float>(accesses) * scale.weight;
  std::atomic<uint32_t>& cell = heats_[page.value];
  uint32_t old_cell = cell.load(std::memory_order_relaxed);
  uint32_t old_bits = 0;
  uint32_t new_bits = 0;
  do {
    old_bits = BitsIn(scale.turn, old_cell);
    new_bits = std::bit_cast<uint32_t>(std::bit_cast<float>(old_bits) + more);
  } while (!cell.compare_exchange_weak(old_cell, new_bits | scale.turn, std::memory_order_relaxed));
  if (BucketOf(old_bits) != BucketOf(new_bits)) {
    buckets_[BucketOf(old_bits)].fetch_sub(1, std::memory_order_relaxed);
    buckets_[BucketOf(new_bits)].fetch_add(1, std::memory_order_relaxed);
  }
}

float HeatMap::Heat(PageIndex page) const {
  const Scale scale = this->scale();
  const uint32_t cell = heats_[page.value].load(std::memory_order_relaxed);
  return std::bit_cast<float>(BitsIn(scale.turn, cell)) / scale.weight;
}

void HeatMap::Age(double factor) {
  {
    WriterLock lock(range_mutex_);
    Shrink(factor);
  }
  const double share = -std::log2(factor) / kSweepOctaves * static_cast<double>(pages());
  const uint64_t count = std::max(kPagesPerAge, static_cast<uint64_t>(std::ceil(share)));
  for (uint64_t at = 0; at < count; at += kPagesPerStep) {
    WriterLock lock(range_mutex_);
    if (swept_ >= pages()) {
      return;
    }
    Sweep(kPagesPerStep);
  }
}

void HeatMap::Forget(double factor, float most) {
  WriterLock lock(range_mutex_);
  Shrink(factor);
  if (swept_ >= pages()) {
    BeginTurn(most);
  }
}

void HeatMap::Shrink(double factor) {
  TERMFS_CHECK(factor > 0 && factor <= 1);
  weight_.store(static_cast<float>(weight_.load(std::memory_order_relaxed) / factor), std::memory_order_relaxed);
  if (scale().weight > kHighestWeight) {
    Sweep(pages());
    BeginTurn(kNoLimit);
  }
}

void HeatMap::Sweep(uint64_t pages) {
  const uint32_t turn = scale().turn;
  const uint64_t end = std::min(pages, this->pages() - std::min(swept_, this->pages())) + swept_;
  for (; swept_ < end; swept_++) {
    const uint32_t cell = heats_[swept_].load(std::memory_order_relaxed);
    if (cell != 0 && (cell & kTurnBit) != turn) {  // what was never accessed gets no memory here
      heats_[swept_].store(BitsIn(turn, cell) | turn, std::memory_order_relaxed);
    }
  }
}

void HeatMap::BeginTurn(float most) {
  // By a power of two, so that only exponents change.
  const int octaves = std::ilogb(scale().weight) - std::ilogb(kLowestWeight);
  const float weight = std::ldexp(scale().weight, -octaves);
  const Rate rate{.less = static_cast<uint32_t>(octaves) << kExponentShift,
                  .most = std::bit_cast<uint32_t>(most * weight)};
  std::array<uint64_t, kBuckets> pages{};
  for (size_t bucket = 0; bucket < kBuckets; bucket++) {
    const auto bits = static_cast<uint32_t>(bucket) << kBucketShift;
    pages[BucketOf(Convert(rate, bits))] += buckets_[bucket].load(std::memory_order_relaxed);
  }
  for (size_t bucket = 0; bucket < kBuckets; bucket++) {
    buckets_[bucket].store(pages[bucket], std::memory_order_relaxed);
  }
  rate_.store(rate, std::memory_order_relaxed);
  // The other sign: from now on every cell is of the turn before.
  weight_.store(std::signbit(weight_.load(std::memory_order_relaxed)) ? weight : -weight, std::memory_order_release);
  swept_ = 0;
}

double HeatMap::Dispersion() const {
  const double weight = scale().weight;
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
      return upper / scale().weight;
    }
  }
  return 0;
}

}  // namespace termfs::tlib::server
