// SPDX-License-Identifier: Apache-2.0
//
// One reading of the counters of a mount, its server, or both, and what two of them say about the time in between.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "base/result.h"

namespace termfs::mount {

using Metrics = std::map<std::string, uint64_t>;

struct StatsSample {
  std::chrono::steady_clock::time_point when;
  uint64_t unix_ms = 0;
  bool of_mount = false;  // else `mount` is empty
  Metrics mount;
  std::string fuse;     // what the mount's requests come over
  std::string libfuse;  // its version
  bool of_server = false;
  Metrics server;
};

// Reads `source`: a mount point with its server beside it, or a volume's address, with `secret` where that is a host's.
// For a mount whose server cannot be asked, `server_error` says why and the mount's own counters are returned.
Result<StatsSample> TakeSample(const std::string& source, const std::string& secret, Status& server_error);

std::string StatsHeader();
// A line of the live view: rates between the samples, percentiles since the start. "-" where the source does not know.
std::string StatsLine(const StatsSample& before, const StatsSample& now);
// One JSON object: the raw metrics.
std::string StatsJson(const StatsSample& sample);

}  // namespace termfs::mount
