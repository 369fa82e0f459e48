// SPDX-License-Identifier: Apache-2.0
//
// Zipf-distributed numbers, scrambled: rank r (from 1) is drawn with probability proportional to 1 / r^theta, and ranks
// are spread over [0, items) by a permutation, so that neighbours are not equally hot. Neither needs a table: ranks are
// drawn by rejection-inversion (Hoermann and Derflinger, 1996), the permutation is a small Feistel network.
//
// Thread-safety: everything is const; one Random per thread.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>

#include "base/random.h"

namespace termfs::benchmarks {

// A permutation of [0, items), another one for each seed.
class Scramble {
 public:
  // REQUIRES: 0 < items <= 2^62.
  Scramble(uint64_t items, uint64_t seed)
      : items_(items),
        half_bits_(std::max(1, static_cast<int>(std::bit_width(items - 1) + 1) / 2)),
        mask_((1ULL << half_bits_) - 1) {
    Random random(seed);
    std::generate(keys_.begin(), keys_.end(), [&] { return random(); });
  }

  uint64_t operator()(uint64_t number) const {
    do {
      uint64_t left = number >> half_bits_;
      uint64_t right = number & mask_;
      for (const uint64_t key : keys_) {
        const uint64_t mixed = (right ^ key) * 0x9e3779b97f4a7c15ULL;
        left = std::exchange(right, left ^ ((mixed ^ (mixed >> 32)) & mask_));
      }
      number = (left << half_bits_) | right;
    } while (number >= items_);  // the network permutes a power of two: less than four times as many
    return number;
  }

 private:
  const uint64_t items_;
  const int half_bits_;
  const uint64_t mask_;
  std::array<uint64_t, 4> keys_{};
};

// Ranks from 1 to `items`; theta 0 is uniform.
class ZipfRanks {
 public:
  // REQUIRES: items > 0, theta >= 0.
  ZipfRanks(uint64_t items, double theta)
      : items_(items),
        theta_(theta),
        low_(Integral(1.5) - 1),
        high_(Integral(static_cast<double>(items) + 0.5)),
        squeeze_(2 - Inverse(Integral(2.5) - std::pow(2, -theta))) {}

  uint64_t Draw(Random& random) const {
    if (theta_ == 0) {
      return 1 + random.Below(items_);
    }
    while (true) {
      const double under = high_ + random.Double() * (low_ - high_);
      const double x = Inverse(under);
      const double rank = std::clamp(std::round(x), 1.0, static_cast<double>(items_));
      if (rank - x <= squeeze_ || under >= Integral(rank + 0.5) - std::pow(rank, -theta_)) {
        return static_cast<uint64_t>(rank);
      }
    }
  }

 private:
  // Of x^-theta, up to a constant, and its inverse.
  double Integral(double x) const { return theta_ == 1 ? std::log(x) : (std::pow(x, 1 - theta_) - 1) / (1 - theta_); }
  double Inverse(double y) const {
    return theta_ == 1 ? std::exp(y) : std::pow(1 + y * (1 - theta_), 1 / (1 - theta_));
  }

  const uint64_t items_;
  const double theta_;
  const double low_;
  const double high_;
  const double squeeze_;
};

class Zipf {
 public:
  Zipf(uint64_t items, double theta, uint64_t seed) : ranks_(items, theta), place_(items, seed) {}
  uint64_t Draw(Random& random) const { return place_(ranks_.Draw(random) - 1); }

 private:
  const ZipfRanks ranks_;
  const Scramble place_;
};

}  // namespace termfs::benchmarks
