// SPDX-License-Identifier: Apache-2.0
//
// What an operation on names costs the server of a volume that names_bench has filled. Threads of the client library
// ask, about files that are drawn at random from all: enough that the server always has a request, and does not spin.
//
// Errors: end the benchmark.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace termfs::benchmarks::names {

inline constexpr uint64_t kTurns = 15;

struct LoadSettings {
  std::string volume;
  uint64_t files = 0;
  uint64_t operations = 20000;  // of each kind but lists
  uint64_t lists = 200;
  uint64_t threads = 8;
  uint64_t cold = 200;  // look-ups of a server that has just been started, before all else; 0: none
  bool walk = false;    // then every directory is listed, which fills the server's memory as far as it goes
  uint64_t turn = 0;    // below kTurns: each has files of its own to unlink, and names to create
};

struct Cost {
  std::string name;
  uint64_t operations = 0;
  double server_us = 0;  // of processor time, each
  double client_us = 0;
  double p50_us = 0;  // from request to reply
  double p99_us = 0;
  double read_bytes = 0;         // of the store's files, each
  uint64_t most_read_bytes = 0;  // of the cold ones, the most by one
};

std::vector<Cost> Measure(const LoadSettings& settings);

}  // namespace termfs::benchmarks::names
