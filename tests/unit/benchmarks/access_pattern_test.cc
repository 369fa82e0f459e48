// SPDX-License-Identifier: Apache-2.0
//
// What the benchmarks draw is what they say they draw.
#include "benchmarks/term/access_pattern.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

namespace termfs::benchmarks::term {
namespace {

constexpr uint64_t kItems = 1000;
constexpr uint64_t kDraws = 400000;

double Probability(uint64_t rank, double theta) {
  double mass = 0;
  for (uint64_t r = 1; r <= kItems; r++) {
    mass += std::pow(static_cast<double>(r), -theta);
  }
  return std::pow(static_cast<double>(rank), -theta) / mass;
}

class ZipfTest : public testing::TestWithParam<double> {};

TEST_P(ZipfTest, Draw_EachRankAsOftenAsItsProbability) {
  const ZipfRanks ranks(kItems, GetParam());
  Random random(3);
  std::vector<uint64_t> seen(kItems + 1);
  for (uint64_t i = 0; i < kDraws; i++) {
    const uint64_t rank = ranks.Draw(random);
    ASSERT_GE(rank, 1u);
    ASSERT_LE(rank, kItems);
    seen[rank]++;
  }
  for (const uint64_t rank : {1, 2, 3, 10, 100, 500, 1000}) {
    const double expected = Probability(rank, GetParam()) * kDraws;
    EXPECT_NEAR(static_cast<double>(seen[rank]), expected, 6 * std::sqrt(expected) + 1) << "rank " << rank;
  }
}
INSTANTIATE_TEST_SUITE_P(Thetas, ZipfTest, testing::Values(0, 0.5, 0.99, 1, 1.2));

TEST(Scramble, IsAPermutation_AnotherOneForEachSeed) {
  for (const uint64_t items : {uint64_t{1}, uint64_t{2}, uint64_t{5}, uint64_t{1000}, uint64_t{4096}}) {
    const Scramble scramble(items, 1);
    std::set<uint64_t> images;
    for (uint64_t i = 0; i < items; i++) {
      images.insert(scramble(i));
    }
    EXPECT_EQ(images.size(), items);
    EXPECT_EQ(*images.rbegin(), items - 1);
  }
  const Scramble one(kItems, 1);
  const Scramble other(kItems, 2);
  uint64_t same = 0;
  uint64_t neighbours = 0;
  for (uint64_t i = 0; i + 1 < kItems; i++) {
    same += one(i) == other(i) ? 1 : 0;
    neighbours += std::max(one(i), one(i + 1)) - std::min(one(i), one(i + 1)) < 10 ? 1 : 0;
  }
  EXPECT_LT(same, kItems / 50);
  EXPECT_LT(neighbours, kItems / 10) << "neighbours would be equally hot";
}

// The share of a pattern's accesses that go to the `held` items it accesses most.
double BestHits(const PatternOptions& options, uint64_t held, double now) {
  std::vector<uint64_t> seen(options.items());
  AccessPattern even(options, 0, 2);
  AccessPattern odd(options, 1, 2);
  for (uint64_t i = 0; i < kDraws; i++) {
    seen[even.Next(now) * uint64_t{options.access_bytes} / options.item_bytes()]++;
    seen[odd.Next(now) * uint64_t{options.access_bytes} / options.item_bytes()]++;
  }
  std::sort(seen.rbegin(), seen.rend());
  return static_cast<double>(std::accumulate(seen.begin(), seen.begin() + static_cast<std::ptrdiff_t>(held), 0.0)) /
         (2 * kDraws);
}

TEST(OracleHits, IsWhatTheMostAccessedItemsGet) {
  for (const Distribution distribution :
       {Distribution::kUniform, Distribution::kZipf, Distribution::kScan, Distribution::kTenants}) {
    for (const uint32_t bytes : {256U, 4096U, 16384U}) {
      PatternOptions options{.distribution = distribution, .region_bytes = uint64_t{4} << 20, .access_bytes = bytes};
      const uint64_t held = options.items() / 4;
      // What is drawn scatters, so the best of it is a little better than the oracle knows.
      EXPECT_NEAR(BestHits(options, held, 0), OracleHits(options, 0.25), 0.02)
          << ToString(distribution) << ", " << bytes << " bytes";
    }
  }
}

TEST(AccessPattern, Moving_TheHotSetIsAnotherOneFromThenOn) {
  const PatternOptions options{
      .distribution = Distribution::kMoving, .move_at = 5, .region_bytes = uint64_t{4} << 20, .access_bytes = 4096};
  AccessPattern pattern(options, 0, 1);
  const auto hottest = [&](double now) {
    std::vector<uint64_t> seen(options.items());
    for (uint64_t i = 0; i < kDraws; i++) {
      seen[pattern.Next(now)]++;
    }
    return std::max_element(seen.begin(), seen.end()) - seen.begin();
  };
  const auto before = hottest(0);
  EXPECT_EQ(hottest(4.9), before);
  const auto after = hottest(5);
  EXPECT_NE(after, before);
  EXPECT_EQ(hottest(60), after);
}

TEST(AccessPattern, Scan_ThreadsShareTheRegionAndComeRound) {
  const PatternOptions options{
      .distribution = Distribution::kScan, .region_bytes = uint64_t{4} << 20, .access_bytes = 4096};
  std::set<uint32_t> all;
  for (uint32_t thread = 0; thread < 3; thread++) {
    AccessPattern pattern(options, thread, 3);
    const uint32_t first = pattern.Next(0);
    std::set<uint32_t> own = {first};
    uint32_t next = pattern.Next(0);
    for (uint32_t expected = first + 1; next != first; expected++) {
      ASSERT_EQ(next, expected);
      own.insert(next);
      next = pattern.Next(0);
    }
    for (const uint32_t unit : own) {
      EXPECT_TRUE(all.insert(unit).second) << "two threads read it";
    }
  }
  EXPECT_EQ(all.size(), options.items());
}

}  // namespace
}  // namespace termfs::benchmarks::term
