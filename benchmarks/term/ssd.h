// SPDX-License-Identifier: Apache-2.0
//
// What the SSD itself gives: random accesses to a file with O_DIRECT, through libaio.
//
// Errors: end the benchmark.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace termfs::benchmarks::term {

struct SsdLoad {
  uint32_t bytes = 4096;  // of an access
  bool writes = false;    // overwrites the file's bytes
  uint32_t depth = 1;     // accesses in flight, over as many threads as there are CPUs; one at depth 1
  double seconds = 1;
  uint64_t seed = 1;
};

struct SsdRate {
  uint32_t depth = 0;
  double per_second = 0;
  double p50_us = 0;
  double p99_us = 0;
};

// On the whole file.
SsdRate MeasureSsdAt(const std::string& path, const SsdLoad& load);
// The same at several depths.
std::vector<SsdRate> MeasureSsd(const std::string& path, SsdLoad load);
// The best of them; nothing where there are none.
SsdRate BestOf(const std::vector<SsdRate>& rates);

}  // namespace termfs::benchmarks::term
