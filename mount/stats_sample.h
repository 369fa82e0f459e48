// SPDX-License-Identifier: Apache-2.0
//
// One reading of what a mount, its server, or both have counted.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/result.h"
#include "fs/client/admin.h"

namespace termfs::mount {

using Metrics = std::map<std::string, uint64_t>;
using Histograms = std::map<std::string, Buckets>;

// docs/metrics.md says what each is.
struct Counted {
  Metrics metrics;
  Histograms histograms;
};

struct StatsSample {
  std::chrono::steady_clock::time_point when;
  uint64_t unix_ms = 0;
  bool of_mount = false;  // else `mount` is empty
  Counted mount;
  std::string fuse;     // what the mount's requests come over
  std::string libfuse;  // its version
  bool of_server = false;
  Counted server;
  bool of_sessions = false;                         // they are asked for
  std::vector<fs::client::SessionStatus> sessions;  // of the server; else empty
};

struct StatsSource {
  std::string place;  // a mount point, or a volume's address
  std::string secret;
  bool server = true;  // of a mount: its server, too
  bool sessions = false;
};

// Reads a mount point, and its server beside it, or a volume's server. For a mount whose server cannot be asked,
// `server_error` says why and the mount's own counters are returned, unless sessions are asked for.
Result<StatsSample> TakeSample(const StatsSource& source, Status& server_error);

// One JSON object: the counters as they are, and the buckets of the histograms.
std::string StatsJson(const StatsSample& sample);

}  // namespace termfs::mount
