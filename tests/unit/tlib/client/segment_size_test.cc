// SPDX-License-Identifier: Apache-2.0
#include "tlib/client/segment_size.h"

#include <gtest/gtest.h>

namespace termfs::tlib::client {
namespace {

using Next = SegmentSize::Next;
using std::chrono::minutes;
using std::chrono::seconds;

struct SegmentSizeTest : ::testing::Test {
  // Full segments are lost, small ones are not.
  void FindBlackHole() {
    EXPECT_EQ(size.Probed(0, false, now), Next::kConnectAgain);
    EXPECT_EQ(size.Probed(SegmentSize::kSmall, true, now), Next::kGoOnSmall);
  }

  SegmentSize size;
  SegmentSize::TimePoint now{std::chrono::hours(1)};
};

TEST_F(SegmentSizeTest, Probed_Answered_StaysFull) {
  EXPECT_EQ(size.limit(now), 0U);
  EXPECT_EQ(size.Probed(0, true, now), Next::kGoOn);
  EXPECT_EQ(size.limit(now), 0U);
}

TEST_F(SegmentSizeTest, Probed_FullIsLost_TriesSmall) {
  EXPECT_EQ(size.Probed(0, false, now), Next::kConnectAgain);
  EXPECT_EQ(size.limit(now), SegmentSize::kSmall);
}

TEST_F(SegmentSizeTest, Probed_OnlyFullIsLost_StaysSmallForTenMinutes) {
  FindBlackHole();
  now += minutes(10) - seconds(1);
  EXPECT_EQ(size.limit(now), SegmentSize::kSmall);
  now += seconds(1);
  EXPECT_EQ(size.limit(now), 0U) << "a path that was repaired is used in full again";
}

TEST_F(SegmentSizeTest, Probed_ReconnectionMeanwhile_DoesNotProlong) {
  FindBlackHole();
  now += minutes(9);
  EXPECT_EQ(size.Probed(size.limit(now), true, now), Next::kGoOn) << "and is not logged again";
  now += minutes(1);
  EXPECT_EQ(size.limit(now), 0U);
}

TEST_F(SegmentSizeTest, Probed_BlackHoleIsStillThere_SmallAgain) {
  FindBlackHole();
  now += minutes(10);
  FindBlackHole();
  EXPECT_EQ(size.limit(now), SegmentSize::kSmall);
}

TEST_F(SegmentSizeTest, Probed_SmallIsLostToo_FullAgain) {
  EXPECT_EQ(size.Probed(0, false, now), Next::kConnectAgain);
  EXPECT_EQ(size.Probed(SegmentSize::kSmall, false, now), Next::kFail);
  EXPECT_EQ(size.limit(now), 0U) << "the path was down, which says nothing of sizes";
}

TEST_F(SegmentSizeTest, Probed_SmallIsLostLater_FullAgain) {
  FindBlackHole();
  now += seconds(5);
  EXPECT_EQ(size.Probed(SegmentSize::kSmall, false, now), Next::kFail);
  EXPECT_EQ(size.limit(now), 0U);
}

TEST_F(SegmentSizeTest, Failed_NoConnectionToTry_FullAgain) {
  EXPECT_EQ(size.Probed(0, false, now), Next::kConnectAgain);
  size.Failed();
  EXPECT_EQ(size.limit(now), 0U);
  EXPECT_EQ(size.Probed(0, true, now), Next::kGoOn);
}

}  // namespace
}  // namespace termfs::tlib::client
