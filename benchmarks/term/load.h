// SPDX-License-Identifier: Apache-2.0
//
// Load: the client processes. Each has a session with every server, and for each of its threads a channel on it; one
// kind at a time is accessed, for a turn.
//
// Errors: end the benchmark.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/term/accessor.h"
#include "benchmarks/term/child.h"
#include "benchmarks/term/latencies.h"
#include "benchmarks/term/settings.h"

namespace termfs::benchmarks::term {

constexpr size_t kMostSeconds = 7200;  // of a load that are told apart

// What the library says of one process's session with one server, since Begin or Forget; percentiles: since Begin.
struct SessionCounts {
  uint64_t read_pages = 0;
  uint64_t hit_pages = 0;      // one-sided
  uint64_t bitmap_pages = 0;   // known absent
  uint64_t pattern_pages = 0;  // found absent
  uint64_t rpc_reads = 0;
  uint64_t rpc_read_pages = 0;
  uint64_t bitmap_pulls = 0;
  // Nanoseconds of Channel::Read, when nothing was absent and when something was.
  uint64_t hit_p50 = 0;
  uint64_t hit_p99 = 0;
  uint64_t miss_p50 = 0;
  uint64_t miss_p99 = 0;
  uint64_t miss_p999 = 0;
};

// What one process did to one kind since Begin or Forget.
struct Tally {
  double rate = 0;  // of the last turn: accesses per second
  uint64_t accesses = 0;
  uint64_t writes = 0;
  SessionCounts session;
  double processor_seconds = 0;  // of turns, without drawing what is accessed
  Latencies latencies;           // with depth 1
  uint32_t by_second[kMostSeconds] = {};
};

class Load {
 public:
  // Starts the processes. The servers are there; kind k's in directories[k]. REQUIRES: all points have the same kinds,
  // region and processes.
  Load(const std::vector<Settings>& points, const std::vector<std::string>& directories);

  // Writes all of that kind's region.
  void Fill(size_t kind);
  // Ends the benchmark when some of its pages, taken at random, do not hold what Fill wrote. REQUIRES: nobody else has
  // written.
  void Verify(size_t kind);
  // New sessions, for accesses as that point has them; nothing is counted yet.
  void Begin(size_t point);
  // The sessions stay, and nothing is counted yet.
  void Forget();
  // Accesses per second.
  double Run(const Turn& turn);

  std::vector<const Tally*> tallies(size_t kind) const;
  // Of all turns of that kind since Begin or Forget.
  double ProcessorSeconds(size_t kind) const;

 private:
  const size_t kinds_;
  Tally* shared_ = nullptr;  // [process][kind]; the processes write it while they carry out a command
  std::vector<std::unique_ptr<Child>> processes_;
};

}  // namespace termfs::benchmarks::term
