// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/term/access_pattern.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/page.h"

namespace termfs::benchmarks::term {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"uniform", "zipf", "scan", "moving", "tenants"};

// The sum of r^-theta for r from 1 to `count`.
double ZipfMass(uint64_t count, double theta) {
  double sum = 0;
  for (uint64_t rank = count; rank > 0; rank--) {  // small ones first: they would be lost beside the large
    sum += std::pow(static_cast<double>(rank), -theta);
  }
  return sum;
}

uint64_t ZipfItems(const PatternOptions& options) {
  return options.distribution == Distribution::kTenants ? options.items() / 2 : options.items();
}

}  // namespace

std::string_view ToString(Distribution distribution) { return kNames.at(static_cast<size_t>(distribution)); }

Result<Distribution> ParseDistribution(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) {
    return Status::Error(EINVAL, "a distribution is one of uniform, zipf, scan, moving and tenants");
  }
  return static_cast<Distribution>(found - kNames.begin());
}

uint64_t PatternOptions::item_bytes() const { return std::max<uint64_t>(access_bytes, kPageSize); }

AccessPattern::AccessPattern(const PatternOptions& options, uint32_t thread, uint32_t threads, uint32_t generation)
    : options_(options),
      places_(options.item_bytes() / options.access_bytes),
      odd_(thread % 2 != 0),
      random_(options.seed * 1000003 + generation * 1009ULL + thread),
      zipf_(ZipfItems(options), options.theta, options.seed),
      moved_(ZipfItems(options), options.theta, options.seed + 1),
      scan_begin_(options.items() * thread / threads),
      scan_end_(options.items() * (thread + 1) / threads),
      scan_at_(scan_begin_) {}

uint64_t AccessPattern::NextItem(double now) {
  const uint64_t items = options_.items();
  switch (options_.distribution) {
    case Distribution::kUniform:
      return random_.Below(items);
    case Distribution::kZipf:
      return zipf_.Draw(random_);
    case Distribution::kScan: {
      const uint64_t item = scan_at_;
      scan_at_ = scan_at_ + 1 < scan_end_ ? scan_at_ + 1 : scan_begin_;
      return item;
    }
    case Distribution::kMoving:
      return (now < options_.move_at ? zipf_ : moved_).Draw(random_);
    case Distribution::kTenants:
      return odd_ ? items / 2 + random_.Below(items - items / 2) : zipf_.Draw(random_);
  }
  return 0;
}

uint32_t AccessPattern::Next(double now) {
  const uint64_t item = NextItem(now);
  return static_cast<uint32_t>(item * places_ + (places_ > 1 ? random_.Below(places_) : 0));
}

double OracleHits(const PatternOptions& options, double ratio) {
  const uint64_t items = options.items();
  const auto held = static_cast<uint64_t>(ratio * static_cast<double>(items));
  switch (options.distribution) {
    case Distribution::kUniform:
    case Distribution::kScan:
      return static_cast<double>(held) / static_cast<double>(items);
    case Distribution::kZipf:
    case Distribution::kMoving:
      return ZipfMass(held, options.theta) / ZipfMass(items, options.theta);
    case Distribution::kTenants: {
      // Each half gets half of the accesses. Of the first half, what is more probable than an item of the second; then
      // the second; then the rest of the first.
      const uint64_t half = items / 2;
      const double mass = ZipfMass(half, options.theta);
      const double level = 1.0 / static_cast<double>(items - half);  // of an item of the second half, in its half
      const double last = options.theta == 0 ? 0 : std::pow(level * mass, -1 / options.theta);
      const uint64_t better = std::min({held, half, static_cast<uint64_t>(last)});
      const uint64_t second = std::min(held - better, items - half);
      const uint64_t first = std::min(half, held - second);
      return 0.5 * ZipfMass(first, options.theta) / mass + 0.5 * static_cast<double>(second) * level;
    }
  }
  return 0;
}

}  // namespace termfs::benchmarks::term
