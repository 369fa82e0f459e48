// SPDX-License-Identifier: Apache-2.0
//
// What the SSD itself gives: random 4 KiB accesses to a file with O_DIRECT, through libaio.
//
// Errors: end the benchmark.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace termfs::benchmarks::term {

struct SsdRate {
  uint32_t depth = 0;  // accesses in flight, over all threads
  double per_second = 0;
  double p50_us = 0;
  double p99_us = 0;
};

// `seconds` long, by as many threads as there are CPUs (and one at depth 1), on the whole file. With `writes` its bytes
// are overwritten.
SsdRate MeasureSsdAt(const std::string& path, bool writes, uint32_t depth, double seconds, uint64_t seed);
// The same at several depths.
std::vector<SsdRate> MeasureSsd(const std::string& path, bool writes, double seconds, uint64_t seed);
// The best of them; nothing where there are none.
SsdRate BestOf(const std::vector<SsdRate>& rates);

}  // namespace termfs::benchmarks::term
