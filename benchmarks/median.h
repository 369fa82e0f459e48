// SPDX-License-Identifier: Apache-2.0
//
// The median of what was measured several times; between the two in the middle when their number is even, 0 of nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace termfs::benchmarks {

inline double Median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace termfs::benchmarks
