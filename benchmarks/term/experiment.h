// SPDX-License-Identifier: Apache-2.0
//
// Experiment: all kinds beside one another on one machine, in turns, and the limit that the machine sets; one point
// after the other, on the same servers.
//
// Errors: end the benchmark.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/median.h"
#include "benchmarks/term/latencies.h"
#include "benchmarks/term/load.h"
#include "benchmarks/term/settings.h"
#include "benchmarks/term/ssd.h"

namespace termfs::benchmarks::term {

struct KindResult {
  std::string name;
  // By turn.
  std::vector<double> rates;  // accesses per second
  std::vector<double> over_pin;
  std::vector<double> over_bound;
  std::vector<double> busy_over_idle;  // with something else on the server's CPU
  std::vector<double> hit_ratios;
  std::vector<uint32_t> by_second;
  uint64_t accesses = 0;
  SessionCounts session;  // summed over the processes; of percentiles the worst
  Latencies latencies;
  double client_us = 0;  // of processor time, for an access
  double server_us = 0;
  double wire_bytes = 0;  // for an access
  double promotions = 0;  // and what follows: for an access
  double server_ssd_reads = 0;
  double ssd_read_bytes = 0;
  double ssd_write_bytes = 0;

  // Of the pages read, those that were in memory: by what clients counted (pin, term), by the server's page faults
  // (odp) or its reads from frames, and by the bytes that the SSD read where the kernel's page cache decides.
  double hit_ratio = 0;

  double rate() const { return Median(rates); }
};

// What the machine allows, with an oracle's misses and with what a hit costs on pin and a miss on term. Zeros: not
// measured.
struct Limit {
  std::vector<SsdRate> ssd_reads;
  std::vector<SsdRate> ssd_writes;
  std::vector<double> ssd_read_turns;  // at the best depth, a turn in each round: a shared SSD is not always as fast
  std::vector<double> ssd_write_turns;
  double oracle_hits = 0;
  double pin_rate = 0;
  double hit_us = 0;     // processor time of client and server for an access to pinned memory
  double miss_us = 0;    // and for one whose page is absent, beside nothing else
  double miss_rate = 0;  // of those
  uint32_t cpus = 0;

  // Accesses per second; medians over the rounds.
  double ssd_bound = 0;        // that the SSD allows, with the oracle's misses
  double processor_bound = 0;  // and the processors
  double bound = 0;            // the least of these and pin's rate
};

struct Results {
  std::vector<KindResult> kinds;
  Limit limit;
};

// Of each point. `scratch`: an empty directory on the SSD. REQUIRES: as Load.
std::vector<Results> Measure(const std::vector<Settings>& points, const std::string& scratch);

}  // namespace termfs::benchmarks::term
