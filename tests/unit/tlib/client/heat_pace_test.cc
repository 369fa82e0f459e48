// SPDX-License-Identifier: Apache-2.0
#include "tlib/client/heat_pace.h"

#include <gtest/gtest.h>

namespace termfs::tlib::client {
namespace {

class HeatPaceTest : public testing::Test {
 protected:
  // Reads in one part of a period; whether it is told at its end.
  bool Part(uint64_t hits, uint64_t misses) {
    totals_.hit_pages += hits;
    totals_.missed_pages += misses;
    return pace_.PartEnded(totals_);
  }
  // How many of the next parts are told at their end.
  uint32_t Told(uint32_t parts, uint64_t hits, uint64_t misses) {
    uint32_t told = 0;
    for (uint32_t i = 0; i < parts; i++) {
      told += Part(hits, misses) ? 1 : 0;
    }
    return told;
  }

  HeatPace pace_;
  ReadTotals totals_;
};

TEST_F(HeatPaceTest, OnceAPeriod_AsLongAsNothingChanges) {
  EXPECT_FALSE(Part(9400, 600));
  EXPECT_FALSE(Part(9400, 600));
  EXPECT_FALSE(Part(9400, 600));
  EXPECT_TRUE(Part(9400, 600));
  EXPECT_EQ(Told(40, 9400, 600), 10U);
  EXPECT_EQ(Told(40, 9300, 700), 10U);
  EXPECT_EQ(Told(40, 0, 0), 10U);
}

TEST_F(HeatPaceTest, MoreMisses_AreToldAtOnceAndForAWhile) {
  Told(8, 9400, 600);
  EXPECT_TRUE(Part(8300, 1700));
  EXPECT_EQ(Told(7, 8300, 1700), 7U);
  EXPECT_EQ(Told(40, 8300, 1700), 10U);  // that is usual by now
  EXPECT_EQ(Told(4, 9400, 600), 1U);     // and less is no hurry
}

TEST_F(HeatPaceTest, FewReads_TellNothing) {
  Told(8, 9400, 600);
  EXPECT_EQ(Told(40, 0, 200), 10U);
}

TEST_F(HeatPaceTest, Sampling_IsOfWhoHardlyMisses) {
  EXPECT_EQ(pace_.sampling(), 1U);
  Told(4, 9400, 600);
  EXPECT_EQ(pace_.sampling(), 1U);
  Told(4, 1'000'000, 1000);
  EXPECT_EQ(pace_.sampling(), 3U);
  Told(4, 1'000'000, 0);
  EXPECT_EQ(pace_.sampling(), 16U);
  Told(4, 60, 0);  // too few to cost anything
  EXPECT_EQ(pace_.sampling(), 1U);
  Told(4, 1'000'000, 0);
  EXPECT_TRUE(Part(950'000, 50'000));  // at once
  EXPECT_EQ(pace_.sampling(), 1U);
}

// Sums that were taken while others counted.
TEST_F(HeatPaceTest, TotalsThatGoBack_AreNothing) {
  Told(4, 1000, 1000);
  totals_.hit_pages -= 500;
  EXPECT_EQ(Told(4, 0, 0), 1U);
  EXPECT_EQ(pace_.sampling(), 1U);
}

}  // namespace
}  // namespace termfs::tlib::client
