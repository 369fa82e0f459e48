// SPDX-License-Identifier: Apache-2.0
//
// Stage: what the points of one call share: the servers with what is in their memory, the clients, and what was learnt
// of the SSD.
//
// Thread-safety: none. Errors: end the benchmark.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "benchmarks/term/busy_processor.h"
#include "benchmarks/term/control_group.h"
#include "benchmarks/term/load.h"
#include "benchmarks/term/region_server.h"
#include "benchmarks/term/settings.h"
#include "benchmarks/term/ssd.h"

namespace termfs::benchmarks::term {

class Stage {
 public:
  // Starts the servers and fills their regions. `scratch`: an empty directory on the SSD. REQUIRES: as Load.
  Stage(const std::vector<Settings>& points, const std::string& scratch);

  // The DRAM ratio and the SSD's speed of that point.
  void Adopt(const Settings& settings);

  Load& load() { return load_; }
  const std::vector<std::unique_ptr<RegionServer>>& servers() const { return servers_; }
  const BusyProcessor* busy() const { return busy_.get(); }  // null: none is wanted

  // The SSD with such accesses, at several depths; measured when it is first asked for.
  const std::vector<SsdRate>& SsdRates(const SsdLoad& load);
  // At the best of these depths, now.
  double SsdRateNow(SsdLoad load);

  // Accesses that all miss, beside nothing else. Zeros: not measured yet with such accesses.
  struct Misses {
    double per_second = 0;
    double cpu_us = 0;  // of client and server, for one
  };
  Misses& MissesOf(const Settings& settings) {
    return misses_[{settings.pattern.access_bytes, settings.write_share, settings.threads, settings.depth,
                    settings.ssd_iops}];
  }

 private:
  void LimitSsdReads(uint64_t per_second);
  std::string SsdFile(bool writes);

  const std::string scratch_;
  ControlGroup group_;  // of this process: what it measures of the SSD is limited, too
  const std::string directory_;
  uint64_t ssd_iops_ = 0;
  std::vector<std::string> directories_;
  std::vector<std::unique_ptr<RegionServer>> servers_;
  std::unique_ptr<BusyProcessor> busy_;
  Load load_;
  std::string written_;  // a file for the SSD's writes; empty: there is none yet
  uint64_t written_bytes_ = 0;
  uint64_t seed_ = 0;
  std::map<std::tuple<uint32_t, bool, uint64_t>, std::vector<SsdRate>> ssd_rates_;  // by bytes, writes, SSD's limit
  std::map<std::tuple<uint32_t, double, uint32_t, uint32_t, uint64_t>, Misses> misses_;
};

}  // namespace termfs::benchmarks::term
