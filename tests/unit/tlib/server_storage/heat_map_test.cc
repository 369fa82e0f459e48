// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/heat_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random.h"
#include "tests/unit/tlib/server_storage/thread_faults.h"

namespace termfs::tlib::server {
namespace {

constexpr double kAge = -1.5;  // octaves at a time: 80 of them are a turn of the weight

// The same heats, without anything clever.
class HeatOracle {
 public:
  explicit HeatOracle(uint64_t pages) : heats_(pages) {}
  void Add(uint64_t page, uint32_t accesses) { heats_[page] += accesses; }
  void Age(double factor) {
    for (double& heat : heats_) {
      heat *= factor;
    }
  }
  void Forget(double factor, double most) {
    for (double& heat : heats_) {
      heat = std::min(heat * factor, most);
    }
  }
  double Heat(uint64_t page) const { return heats_[page]; }
  uint64_t HotterThan(double heat) const {
    return static_cast<uint64_t>(std::count_if(heats_.begin(), heats_.end(), [&](double h) { return h > heat; }));
  }

 private:
  std::vector<double> heats_;
};

// Some pages are accessed all the time, others now and then, others never: of each its cell is in another turn.
void AddSome(HeatMap& map, HeatOracle& oracle, Random& random) {
  for (int i = 0; i < 200; i++) {
    const uint64_t page = random.Below(2) == 0 ? random.Below(64) : random.Below(2000);
    const auto accesses = static_cast<uint32_t>(1 + random.Below(50));
    map.Add({page}, accesses);
    oracle.Add(page, accesses);
  }
}

// Each 37th round forgets.
TEST(HeatMap, AgeAndForget_OverManyTurns_KeepHeatsAndThreshold) {
  constexpr uint64_t kPages = 3000;
  HeatMap map(kPages, kPages);
  HeatOracle oracle(kPages);
  Random random(1);
  for (int round = 0; round < 500; round++) {
    AddSome(map, oracle, random);
    for (uint64_t page = 0; page < kPages; page++) {
      ASSERT_NEAR(map.Heat({page}), oracle.Heat(page), 1e-4 * oracle.Heat(page) + 1e-12) << page << " in " << round;
    }
    for (const uint64_t count : {0, 10, 100, 1000}) {
      const double threshold = map.Threshold(count);
      ASSERT_LE(oracle.HotterThan(threshold * 1.0001), count) << "in " << round;
      if (threshold > 1e-12) {
        ASSERT_GT(oracle.HotterThan(threshold / 1.15), count) << "in " << round;
      }
    }
    map.Age(std::exp2(kAge));
    oracle.Age(std::exp2(kAge));
    if (round % 37 == 0) {
      map.Forget(0.5, 3);
      oracle.Forget(0.5, 3);
    }
  }
}

TEST(HeatMap, Forget_BeforeTheLastIsOver_Shrinks) {
  constexpr uint64_t kPages = 3 * 65536;
  HeatMap map(kPages, kPages);
  map.Add({5}, 100);
  map.Forget(0.5, 20);
  EXPECT_FLOAT_EQ(map.Heat({5}), 20);
  map.Forget(0.5, 1);  // the cells are still to be converted
  EXPECT_FLOAT_EQ(map.Heat({5}), 10);
  for (uint64_t swept = 0; swept < kPages; swept += 65536) {
    map.Age(1);
  }
  EXPECT_FLOAT_EQ(map.Heat({5}), 10);
  map.Forget(0.5, 1);
  EXPECT_FLOAT_EQ(map.Heat({5}), 1);
  EXPECT_FLOAT_EQ(map.Threshold(1), 0);
  EXPECT_NEAR(map.Threshold(0), 1, 0.13);
}

TEST(HeatMap, Age_PageOfTwoTurnsAgo_IsNotTakenForOneOfThisTurn) {
  HeatMap map(1000, 1000);
  map.Add({7}, 100);
  map.Add({999}, 100);
  for (int round = 0; round < 400; round++) {
    map.Age(std::exp2(kAge));
    const double expected = 100 * std::exp2(kAge * (round + 1));
    ASSERT_LE(map.Heat({7}), 1.001 * expected) << round;
    ASSERT_LE(map.Heat({999}), 1.001 * expected) << round;
  }
}

TEST(HeatMap, Resize_InAnotherTurn_ForgetsWhatIsBeyondTheEnd) {
  HeatMap map(1000, 2000);
  map.Add({10}, 1000);
  map.Add({900}, 1000);
  for (int round = 0; round < 81; round++) {  // a new turn has begun
    map.Age(std::exp2(kAge));
  }
  map.Resize(500);
  map.Resize(2000);
  EXPECT_EQ(map.Heat({900}), 0);
  EXPECT_EQ(map.Threshold(1), 0);
  map.Add({1900}, 1);
  EXPECT_NEAR(map.Heat({1900}), 1, 1e-3);
  EXPECT_GT(map.Threshold(0), 0);
  EXPECT_EQ(map.Threshold(1), 0);
}

TEST(HeatMap, Age_NeverWalksTheWholeRegion) {
  constexpr uint64_t kPages = uint64_t{16} << 20;  // 64 GiB
  constexpr int64_t kArrayPages = kPages * 4 / 4096;
  HeatMap map(kPages, kPages);
  ThreadFaults faults;
  for (int round = 0; round < 170; round++) {  // two turns; the first walks where nobody was before
    map.Age(std::exp2(kAge));
    ASSERT_LT(faults.Take(), kArrayPages / 8) << round;
  }
}

}  // namespace
}  // namespace termfs::tlib::server
