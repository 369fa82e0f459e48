// SPDX-License-Identifier: Apache-2.0
#include "base/seldom.h"

#include <gtest/gtest.h>

#include "tests/fakes/manual_clock.h"

namespace termfs {
namespace {

TEST(Seldom, Next_LetsOneThroughInAnIntervalAndCountsTheOthers) {
  fakes::ManualClock clock;
  Seldom seldom(std::chrono::seconds(10), clock);
  EXPECT_EQ(seldom.Next(), 0u);
  EXPECT_EQ(seldom.Next(), std::nullopt);
  clock.Advance(std::chrono::milliseconds(9999));
  EXPECT_EQ(seldom.Next(), std::nullopt);
  clock.Advance(std::chrono::milliseconds(1));
  EXPECT_EQ(seldom.Next(), 2u);
  EXPECT_EQ(seldom.Next(), std::nullopt);
  clock.Advance(std::chrono::hours(1));
  EXPECT_EQ(seldom.Next(), 1u);
  clock.Advance(std::chrono::hours(1));
  EXPECT_EQ(seldom.Next(), 0u) << "none was left out";
}

}  // namespace
}  // namespace termfs
