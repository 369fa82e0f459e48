// SPDX-License-Identifier: Apache-2.0
//
// AccessPattern: which part of a region one thread asks for next, and how often the best of all caches would have it.
// A region is seen as items of the size of an access, or of a page where that is larger; an access within a page
// takes a random aligned place in it.
//
// Thread-safety: none; one per thread. Determined by the seed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "base/result.h"
#include "benchmarks/zipf.h"

namespace termfs::benchmarks::term {

enum class Distribution : uint8_t {
  kUniform,
  kZipf,     // scrambled over the items
  kScan,     // one item after the other, each thread through a part of its own
  kMoving,   // kZipf; at move_at the ranks are scattered anew
  kTenants,  // even threads: kZipf over the first half; odd ones: kUniform over the second
};
std::string_view ToString(Distribution distribution);
Result<Distribution> ParseDistribution(std::string_view name);

struct PatternOptions {
  Distribution distribution = Distribution::kZipf;
  double theta = 0.99;
  double move_at = 0;  // seconds
  uint64_t region_bytes = uint64_t{1} << 30;
  uint32_t access_bytes = 4096;
  uint64_t seed = 1;

  uint64_t item_bytes() const;
  uint64_t items() const { return region_bytes / item_bytes(); }
};

class AccessPattern {
 public:
  // `thread` of `threads`, counted over all processes. What is hot is the same in each generation, what is drawn is
  // not.
  AccessPattern(const PatternOptions& options, uint32_t thread, uint32_t threads, uint32_t generation = 0);

  // Byte offset of the next access, in units of `unit()`. `now`: seconds since the load began.
  uint32_t Next(double now);
  uint32_t unit() const { return options_.access_bytes; }

 private:
  uint64_t NextItem(double now);

  const PatternOptions options_;
  const uint64_t places_;  // for an access, in an item
  const bool odd_;
  Random random_;
  Zipf zipf_;
  Zipf moved_;
  uint64_t scan_begin_ = 0;
  uint64_t scan_end_ = 0;
  uint64_t scan_at_ = 0;
};

// The share of accesses that a cache of `ratio` of the region answers when it holds the most probable items.
double OracleHits(const PatternOptions& options, double ratio);

}  // namespace termfs::benchmarks::term
