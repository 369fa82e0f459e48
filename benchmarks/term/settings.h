// SPDX-License-Identifier: Apache-2.0
//
// What term_bench is told on its command line.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "benchmarks/term/access_pattern.h"
#include "driver/nic.h"
#include "tlib/client/session.h"
#include "tlib/server/server.h"

namespace termfs::benchmarks::term {

// One of the things that are compared: a kind of memory region, and what decides about frames.
struct Kind {
  std::string name;
  driver::RegionKind region = driver::RegionKind::kTerm;
  tlib::server::FrameChoice choice = tlib::server::FrameChoice::kHeat;

  // The SSD is reached through the kernel's page cache: what the server may hold is limited by a memory cgroup, and
  // threads wait for the SSD in it.
  bool through_page_cache() const {
    return region == driver::RegionKind::kOdp || region == driver::RegionKind::kRpc ||
           region == driver::RegionKind::kRpcBuffer;
  }
};
Result<Kind> ParseKind(const std::string& name);

// Of one point: a measurement of all kinds. Several points share servers and clients, and so all but what --point may
// change.
struct Settings {
  std::vector<Kind> kinds;
  PatternOptions pattern;
  double write_share = 0;  // of the accesses
  double dram_ratio = 0.5;
  uint32_t processes = 1;
  uint32_t threads = 2;  // of each process
  uint32_t depth = 32;   // accesses in flight of each thread
  uint32_t workers = 1;
  uint32_t blocking_workers = 8;  // of the kinds whose workers wait for the SSD
  tlib::client::BitmapMode bitmap = tlib::client::BitmapMode::kLive;
  bool heat = true;                    // clients say what they read
  uint32_t pause_every = 0;            // accesses of a thread, after which it sleeps; 0: never
  std::chrono::microseconds pause{0};  // for so long
  double warmup = 10;                  // seconds, for each kind
  double most_warmup = 0;              // of a kind whose hit ratio still rises then
  double seconds = 14;
  uint32_t rounds = 7;
  int server_cpu = -1;  // that servers and what keeps them busy are confined to; -1: any
  int client_cpu = -1;  // and the clients
  double busy = 0;      // share of server_cpu that something else takes in a second turn of each round
  bool limit = true;
  std::chrono::microseconds odp_delay{0};
  uint64_t ssd_iops = 0;  // reads a second that each server may make; 0: no limit
  std::string directory = "/var/tmp";
  bool json = false;
  std::string name;  // of this run: what it makes in shared places begins with it

  double turn() const { return seconds / rounds; }
  uint64_t pages() const { return pattern.region_bytes / kPageSize; }
  uint32_t all_threads() const { return processes * threads; }
};

// The points, at least one. Empty: all is done (--help, or a bad command line), `exit_code` says how.
std::vector<Settings> ParseSettings(int argc, char** argv, int* exit_code);

}  // namespace termfs::benchmarks::term
