// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/fair_shares.h"

#include <gtest/gtest.h>

namespace termfs::tlib::server {
namespace {

constexpr uint64_t kGreedy = 1;
constexpr uint64_t kOther = 3;
constexpr uint64_t kThird = 5;

// As many as it gets, one by one.
uint32_t TakeAll(FairShares& shares, uint64_t owner) {
  uint32_t taken = 0;
  shares.BeginWait(owner);
  for (; shares.MayTake(owner, 1); ++taken) {
    shares.Take(owner, 1);
  }
  shares.EndWait(owner);
  return taken;
}

TEST(FairShares, NobodyTakesEverything) {
  FairShares shares(16, 1);
  EXPECT_EQ(TakeAll(shares, kGreedy), 8u);
  EXPECT_EQ(TakeAll(shares, kOther), 5u);
  EXPECT_EQ(TakeAll(shares, kThird), 4u) << "more than is left, which the pool knows";
  EXPECT_EQ(TakeAll(shares, kGreedy), 0u);
}

TEST(FairShares, WhatIsGivenBackIsForOthers) {
  FairShares shares(16, 1);
  EXPECT_EQ(TakeAll(shares, kGreedy), 8u);
  EXPECT_EQ(TakeAll(shares, kOther), 5u);
  shares.Give(kGreedy, 8);
  EXPECT_EQ(TakeAll(shares, kOther), 3u) << "alone once more";
  shares.Give(kOther, 8);
  EXPECT_EQ(TakeAll(shares, kGreedy), 8u);
}

TEST(FairShares, WhoWaitsCounts) {
  FairShares shares(16, 1);
  shares.BeginWait(kOther);
  EXPECT_EQ(TakeAll(shares, kGreedy), 5u);
  shares.EndWait(kOther);
  EXPECT_EQ(TakeAll(shares, kGreedy), 3u);
}

TEST(FairShares, TheLeastIsAlwaysEnoughForOneRequest) {
  FairShares shares(256, 128);
  for (uint64_t owner = 1; owner < 10; ++owner) {
    shares.BeginWait(owner);
    EXPECT_TRUE(shares.MayTake(owner, 128));
  }
  shares.Take(kGreedy, 1);
  EXPECT_FALSE(shares.MayTake(kGreedy, 128));
}

}  // namespace
}  // namespace termfs::tlib::server
