// SPDX-License-Identifier: Apache-2.0
//
// Accessor: one thread's accesses to the region of one kind. Of `depth` reads in flight those of absent pages wait for
// the server while the next ones are begun; writes go one by one. What a short turn will access is drawn before it, so
// that drawing takes no time of it; of a long one, a few thousand accesses at a time in between.
//
// Thread-safety: one thread at a time. Errors: end the benchmark.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "benchmarks/term/access_pattern.h"
#include "benchmarks/term/latencies.h"
#include "benchmarks/term/settings.h"

namespace termfs::benchmarks::term {

struct Turn {
  size_t kind = 0;
  double begin = 0;  // seconds of this kind's load that have gone by
  double seconds = 0;
  double write_share = 0;
  bool uniform = false;  // instead of the settings' distribution
};

class Accessor {
 public:
  // `thread`: counted over all processes. `generation`: another sequence for each. `rate`: that is expected.
  Accessor(const Settings& settings, tlib::client::Session& session, uint32_t thread, uint32_t generation, double rate);

  void Prepare(const Turn& turn);
  void Run();

  // Of the last Run.
  uint64_t accesses() const { return accesses_; }
  uint64_t writes() const { return writes_; }
  double rate() const { return rate_; }                                  // accesses per second
  const Latencies& latencies() const { return latencies_; }              // of single accesses: with depth 1 only
  const std::vector<uint32_t>& by_second() const { return by_second_; }  // accesses; second 0: when the load began

 private:
  void Draw(double now);
  uint64_t NextOffset();
  void Call();
  void Read(size_t count);
  void Write();
  void AwaitSome();
  double Elapsed() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count(); }

  const Settings& settings_;
  const uint64_t unit_;  // bytes of an access
  const uint32_t thread_;
  AccessPattern pattern_;
  std::optional<AccessPattern> uniform_;
  Random random_;
  const std::unique_ptr<tlib::client::Channel> channel_;
  std::vector<tlib::client::ReadRequest> reads_;  // of the places in `free_`
  std::vector<std::byte*> free_;                  // places of the buffer for one access each
  std::vector<std::byte*> under_way_;

  Turn turn_;
  std::chrono::steady_clock::time_point began_;
  std::vector<uint32_t> drawn_;  // in units
  size_t next_ = 0;
  bool in_between_ = false;  // it is drawn while the turn runs
  uint64_t accesses_ = 0;
  uint64_t writes_ = 0;
  double rate_ = 0;
  Latencies latencies_;
  std::vector<uint32_t> by_second_;
};

}  // namespace termfs::benchmarks::term
