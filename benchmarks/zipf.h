// SPDX-License-Identifier: Apache-2.0
//
// Zipf-distributed numbers, scrambled: rank r is drawn with probability proportional to 1 / r^theta, and ranks are
// spread over [0, items) by a fixed permutation, so that neighbours are not equally hot.
//
// Thread-safety: Draw is const; one Random per thread. Memory: 12 bytes per item.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/random.h"

namespace termfs::benchmarks {

class Zipf {
 public:
  // REQUIRES: items > 0. theta 0 is uniform.
  Zipf(uint64_t items, double theta, uint64_t seed) : cumulative_(items), place_(items) {
    double sum = 0;
    for (uint64_t rank = 0; rank < items; rank++) {
      sum += std::pow(static_cast<double>(rank + 1), -theta);
      cumulative_[rank] = sum;
    }
    std::iota(place_.begin(), place_.end(), uint32_t{0});
    Random random(seed);
    for (uint64_t i = items - 1; i > 0; i--) {
      std::swap(place_[i], place_[random.Below(i + 1)]);
    }
  }

  uint64_t Draw(Random& random) const {
    const double at = random.Double() * cumulative_.back();
    const auto rank = std::upper_bound(cumulative_.begin(), cumulative_.end(), at) - cumulative_.begin();
    return place_[std::min<uint64_t>(static_cast<uint64_t>(rank), place_.size() - 1)];
  }

 private:
  std::vector<double> cumulative_;
  std::vector<uint32_t> place_;
};

}  // namespace termfs::benchmarks
