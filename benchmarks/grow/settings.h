// SPDX-License-Identifier: Apache-2.0
//
// What one run of grow_bench is told on its command line.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/page.h"

namespace termfs::benchmarks::grow {

constexpr uint32_t kWarmUpStarts = 1;  // before those of each kind that count

struct Settings {
  std::vector<uint64_t> regions;              // bytes
  uint64_t dram = uint64_t{256} << 20;        // bytes of frames
  uint64_t active = uint64_t{512} << 20;      // bytes that are accessed, spread evenly over the region
  std::chrono::milliseconds period{100};      // of promoter, access counts and pulled bitmaps
  double seconds = 5;                         // of each measurement of processor time
  uint32_t rate = 20000;                      // reads a second under load
  uint32_t starts = 3;                        // of each kind
  std::string directory = "/var/tmp";         // on the SSD
  std::string memory_directory = "/dev/shm";  // on a tmpfs
  bool json = false;

  uint64_t frames() const { return dram / kPageSize; }
  uint64_t active_pages() const { return active / kPageSize; }
  double periods() const { return seconds * 1e3 / static_cast<double>(period.count()); }
};

}  // namespace termfs::benchmarks::grow
