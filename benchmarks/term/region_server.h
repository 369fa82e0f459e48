// SPDX-License-Identifier: Apache-2.0
//
// RegionServer: a process that serves a new region of one kind in a directory of its own.
//
// Errors: end the benchmark.
#pragma once

#include <string>

#include "benchmarks/term/child.h"
#include "benchmarks/term/settings.h"
#include "tlib/server/server.h"

namespace termfs::benchmarks::term {

// What the server counts, since it started.
struct ServerCounts {
  uint64_t ssd_reads = 0;
  uint64_t ssd_writes = 0;
  uint64_t promotions = 0;
  uint64_t evictions = 0;
  uint64_t frame_read_pages = 0;
  uint64_t faults = 0;  // odp
};
ServerCounts CountsOf(const tlib::server::Server& server);

class RegionServer {
 public:
  RegionServer(const Settings& settings, const Kind& kind, std::string directory);

  const std::string& directory() const { return directory_; }
  std::string device() const { return directory_ + "/region"; }
  const Child& child() const { return child_; }

  // Everything written is on the SSD.
  void Flush() const;
  // Holds so much of its region in memory from now on, and reads the SSD no more often (0: as often as it can).
  void Adopt(double dram_ratio, uint64_t ssd_iops) const;
  ServerCounts Counts() const;

 private:
  const std::string directory_;
  Child child_;
};

}  // namespace termfs::benchmarks::term
