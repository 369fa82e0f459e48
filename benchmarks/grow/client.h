// SPDX-License-Identifier: Apache-2.0
//
// GrowClient: a process with one session and one channel, that accesses a fixed number of pages, spread evenly over the
// region, whatever the region's size. The first half of them is warm, an eighth of that hot; the other half is cold.
//
// Errors: end the benchmark.
#pragma once

#include <string>

#include "benchmarks/grow/settings.h"
#include "benchmarks/term/child.h"
#include "tlib/client/session.h"

namespace termfs::benchmarks::grow {

// Single reads of a page, one after the other.
struct ReadCost {
  uint64_t reads = 0;
  uint64_t hits = 0;
  uint64_t p50 = 0;  // nanoseconds
  uint64_t p99 = 0;
};

class GrowClient {
 public:
  GrowClient(const Settings& settings, tlib::client::BitmapMode bitmap, const std::string& directory);

  const term::Child& process() const { return child_; }
  // Writes every page that is to be accessed.
  void Fill() const;
  // Reads the warm pages a few times, the hot ones more often, so that they get frames.
  void Warm() const;
  ReadCost ReadHot() const;
  // Each of the cold pages at most once ever.
  ReadCost ReadCold() const;
  // Settings::seconds of Settings::rate reads a second, three of four of hot pages, the others of any.
  ReadCost Load() const;

 private:
  enum class Order : uint32_t { kFill, kWarm, kReadHot, kReadCold, kLoad };
  class Body;

  ReadCost Do(Order order) const;

  term::Child child_;
};

}  // namespace termfs::benchmarks::grow
