// SPDX-License-Identifier: Apache-2.0
//
// GrowServer: a process that serves a region that exists, and can be killed.
//
// Errors: end the benchmark.
#pragma once

#include <string>

#include "benchmarks/term/child.h"
#include "benchmarks/term/region_server.h"
#include "tlib/server/server.h"

namespace termfs::benchmarks::grow {

// From the call of Server::Start to its return.
struct StartCost {
  double seconds = 0;
  double processor_seconds = 0;
};

class GrowServer {
 public:
  // Clients find it in `directory`. Returns when it serves.
  GrowServer(const tlib::server::RegionOptions& options, const std::string& directory);

  const StartCost& start_cost() const { return start_cost_; }
  const term::Child& process() const { return child_; }
  // As SIGKILL does it; its tier stays. Nothing else may be called then.
  void Kill() const;
  term::ServerCounts Counts() const;

 private:
  term::Child child_;
  StartCost start_cost_;
};

}  // namespace termfs::benchmarks::grow
