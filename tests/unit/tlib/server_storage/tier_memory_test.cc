// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/tier_memory.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "base/page.h"

namespace termfs::tlib::server {
namespace {

constexpr uint64_t kGibibyte = uint64_t{1} << 30;
constexpr uint64_t kRoom = uint64_t{1} << 24;  // pages
const MemoryBound kMachine{.of = "the machine", .total = 24 * kGibibyte, .available = 22 * kGibibyte};

TierDemand Demand(uint64_t gibibytes, double ratio) {
  const uint64_t pages = gibibytes * kGibibyte / kPageSize;
  return {.pages = pages,
          .frames = static_cast<uint32_t>(std::llround(ratio * static_cast<double>(pages))),
          .max_pages = std::max(pages, kRoom)};
}

double NumberBehind(const Status& status, const std::string& words) {
  const size_t at = status.message().find(words);
  EXPECT_NE(at, std::string::npos) << status.message();
  return at == std::string::npos ? 0 : std::strtod(&status.message()[at + words.size()], nullptr);
}

TEST(TierMemory, WhatFits_IsNoError) {
  EXPECT_TRUE(CheckTierFits(Demand(40, 0.5), kMachine).ok());
  EXPECT_EQ(CheckTierFits(Demand(100, 0.5), kMachine).code(), ENOMEM);
}

// The ratio that the text names does fit, and a hundredth more does not.
TEST(TierMemory, Refused_NamesTheLargestRatioThatFits) {
  for (const uint64_t gibibytes : {23, 50, 100, 700}) {
    const Status refused = CheckTierFits(Demand(gibibytes, 1), kMachine);
    ASSERT_EQ(refused.code(), ENOMEM);
    EXPECT_NE(refused.message().find("the machine has 22528 MiB"), std::string::npos) << refused.message();
    const double ratio = NumberBehind(refused, "the largest dram-ratio that fits is ");
    EXPECT_TRUE(CheckTierFits(Demand(gibibytes, ratio), kMachine).ok()) << refused.message();
    EXPECT_FALSE(CheckTierFits(Demand(gibibytes, ratio + 0.01), kMachine).ok()) << refused.message();
  }
}

TEST(TierMemory, WhereNoRatioFits_NamesTheLargestCapacity) {
  const Status refused = CheckTierFits(Demand(3000, 0.01), kMachine);
  ASSERT_EQ(refused.code(), ENOMEM);
  const double mebibytes = NumberBehind(refused, "the largest capacity that fits with a dram-ratio of 0.01 is ");
  EXPECT_GT(mebibytes, 1024 * 1024);
  const auto gibibytes = static_cast<uint64_t>(mebibytes / 1024);
  EXPECT_TRUE(CheckTierFits(Demand(gibibytes, 0.01), kMachine).ok()) << refused.message();
  EXPECT_FALSE(CheckTierFits(Demand(gibibytes + gibibytes / 50, 0.01), kMachine).ok()) << refused.message();
}

TEST(TierMemory, OfAKindThatIsInMemoryAsAWhole_NamesTheCapacityOnly) {
  TierDemand demand = Demand(30, 1);
  demand.by_ratio = false;
  const Status refused = CheckTierFits(demand, kMachine);
  EXPECT_EQ(refused.message().find("dram-ratio"), std::string::npos) << refused.message();
  const auto gibibytes = static_cast<uint64_t>(NumberBehind(refused, "the largest capacity that fits is ") / 1024);
  EXPECT_EQ(gibibytes, 21U);
}

TEST(TierMemory, WhatATierHasAlready_CountsOnce) {
  TierDemand demand = Demand(40, 0.5);
  const MemoryBound little{.of = "the machine", .total = 24 * kGibibyte, .available = 2 * kGibibyte};
  EXPECT_EQ(CheckTierFits(demand, little).code(), ENOMEM);
  demand.has = 20 * kGibibyte;
  EXPECT_TRUE(CheckTierFits(demand, little).ok());
  const TierDemand larger{
      .pages = demand.pages, .frames = demand.frames / 20 * 23, .max_pages = kRoom, .has = demand.has};
  const Status refused = CheckTierFits(larger, little);
  EXPECT_EQ(NumberBehind(refused, "the largest dram-ratio that fits is "), 0.54) << refused.message();
}

TEST(TierMemory, WhatMustBeLeft_IsNotTaken) {
  TierDemand demand = Demand(40, 0.5);
  demand.spare = 2 * kGibibyte;
  const Status refused = CheckTierFits(demand, kMachine);
  ASSERT_EQ(refused.code(), ENOMEM);
  EXPECT_NE(refused.message().find("and 2 GiB beside it"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("or lower metadata-memory"), std::string::npos) << refused.message();
  const Status alone = CheckTierFits(Demand(100, 0.5), kMachine);
  EXPECT_EQ(alone.message().find("metadata-memory"), std::string::npos) << alone.message();
  demand.has = 40 * kGibibyte;  // nothing is taken
  EXPECT_TRUE(CheckTierFits(demand, kMachine).ok());
}

}  // namespace
}  // namespace termfs::tlib::server
