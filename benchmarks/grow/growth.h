// SPDX-License-Identifier: Apache-2.0
//
// Growth: what a region of one size costs: its starts, a read, a period, its bookkeeping. Frames, load and pages that
// are accessed are the same for every size.
//
// Errors: end the benchmark.
#pragma once

#include <string>

#include "benchmarks/grow/client.h"
#include "benchmarks/grow/memory.h"
#include "benchmarks/grow/server.h"
#include "benchmarks/grow/settings.h"

namespace termfs::benchmarks::grow {

struct Growth {
  uint64_t region_bytes = 0;
  double make_seconds = 0;  // the region's files, sparse
  // Medians of Settings::starts, after kWarmUpStarts.
  StartCost fresh;   // no page was ever written
  StartCost full;    // every page was; the last server was stopped
  StartCost killed;  // and the last server was killed, with all frames in use
  ReadCost hit;
  ReadCost miss;
  // Microseconds of processor time in a period: of the server alone, and of server and client with a session.
  double server_alone_us = 0;
  double server_idle_us = 0;
  double client_idle_us = 0;  // with the live bitmap
  double client_pulling_us = 0;
  double server_load_us = 0;
  double client_load_us = 0;
  double promotions = 0;  // in a period under load
  ReadCost load;
  Memory server;
  Memory client;          // with the live bitmap
  Memory client_pulling;  // which has read nothing
};

// `directory` and `memory_directory` exist and are empty.
Growth Measure(const Settings& settings, uint64_t region_bytes, const std::string& directory,
               const std::string& memory_directory);

}  // namespace termfs::benchmarks::grow
