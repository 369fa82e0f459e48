// SPDX-License-Identifier: Apache-2.0
//
// What the policy keeps, against an oracle that knows every page's probability. No I/O, fixed seeds: these are tests of
// the choice, not of speed. The bounds leave slack to what was measured (in brackets).
#include "tlib/server/tier_policy.h"

#include <gtest/gtest.h>

#include <utility>

#include "tests/unit/tlib/server_storage/tier_simulation.h"

namespace termfs::tlib::server {
namespace {

constexpr uint64_t kPages = 16384;
constexpr uint32_t kFrames = kPages / 2;

void Drive(TierSimulation& simulation, ScrambledZipf& zipf, uint64_t accesses_per_page) {
  for (uint64_t i = 0; i < accesses_per_page * kPages; i++) {
    simulation.Access(zipf.Next());
  }
}

TEST(TierPolicy, Heat_ZipfOverScrambledPages_IsCloseToTheOracle) {
  for (const uint64_t period : {kPages / 8, kPages, 4 * kPages}) {
    TierSimulation simulation(kPages, kFrames, FrameChoice::kHeat);
    simulation.SetPeriod(period);
    ScrambledZipf zipf(kPages, 0.99, 1);
    Drive(simulation, zipf, 48);
    simulation.TakeMissRatio();
    Drive(simulation, zipf, 16);
    EXPECT_LT(simulation.TakeMissRatio(), 1.15 * zipf.OracleMissRatio(kFrames)) << "period " << period;  // 1.07
  }
}

// Periods of which nothing has been told are no periods of misses alone.
TEST(TierPolicy, Heat_ReportsThatComeLate_AreNotTakenForAShift) {
  for (const uint32_t late : {2, 4}) {
    TierSimulation simulation(kPages, kFrames, FrameChoice::kHeat);
    simulation.SetPeriod(kPages);
    simulation.SetLate(late);
    ScrambledZipf zipf(kPages, 0.99, 1);
    Drive(simulation, zipf, 48);
    simulation.TakeMissRatio();
    Drive(simulation, zipf, 16);
    EXPECT_LT(simulation.TakeMissRatio(), 1.15 * zipf.OracleMissRatio(kFrames)) << late;  // 1.08
  }
}

TEST(TierPolicy, Heat_WhoTellsNoMore_IsForgotten) {
  TierSimulation simulation(kPages, kFrames, FrameChoice::kHeat);
  simulation.SetPeriod(kPages);
  ScrambledZipf zipf(kPages, 0.99, 1);
  simulation.policy().AddTotals(1, 100'000, 0);
  simulation.policy().EndPeriod();
  EXPECT_EQ(simulation.policy().hit_ratio(), 1);
  Drive(simulation, zipf, 4);
  EXPECT_EQ(simulation.policy().hit_ratio(), 1);
  Drive(simulation, zipf, 4);
  EXPECT_LT(simulation.policy().hit_ratio(), 1);
}

// The periods of clients are not the server's: one may fall out of it, or two into it.
TEST(TierPolicy, Heat_ClientsOfUnequalLuck_AreNoShift) {
  TierPolicy policy(kPages, FrameChoice::kHeat);
  for (uint32_t period = 0; period < 40; period++) {
    policy.AddTotals(1, 950, 50);
    if (period % 4 != 1) {
      policy.AddTotals(2, 100, 900);
    }
    if (period % 4 == 2) {
      policy.AddTotals(2, 100, 900);
    }
    policy.EndPeriod();
    EXPECT_NEAR(policy.hit_ratio(), 0.525, 0.001);
  }
}

TEST(TierPolicy, Heat_FewTold_DoNotSpeakForAll) {
  TierPolicy policy(kPages, FrameChoice::kHeat);
  policy.SetBudget(kFrames);
  policy.Access({0}, 900, AccessKind::kHit);
  policy.Access({1}, 100, AccessKind::kMiss);
  policy.AddTotals(1, 5, 5);
  policy.EndPeriod();
  EXPECT_NEAR(policy.hit_ratio(), 0.9, 0.001);
}

TEST(TierPolicy, Heat_TheColdestThatMayGo_Goes) {
  TierSimulation simulation(16, 8, FrameChoice::kHeat);
  for (uint64_t page = 0; page < 8; page++) {
    for (uint64_t i = 0; i <= page; i++) {
      simulation.Access({page});
    }
  }
  simulation.Hold({0});
  for (int i = 0; i < 40; i++) {
    simulation.Access({8});
  }
  EXPECT_TRUE(simulation.Resident({0}));
  EXPECT_TRUE(simulation.Resident({8}));
  uint64_t resident = 0;
  for (uint64_t page = 0; page < 8; page++) {
    resident += simulation.Resident({page}) ? 1 : 0;
  }
  EXPECT_EQ(resident, 7U);
}

TEST(TierPolicy, Heat_UniformAccess_MovesAlmostNothing) {
  TierSimulation simulation(kPages, kFrames, FrameChoice::kHeat);
  simulation.SetPeriod(kPages);
  Random random(3);
  for (uint64_t i = 0; i < 32 * kPages; i++) {
    simulation.Access({random.Below(kPages)});
  }
  simulation.TakeReplacements();
  for (uint64_t i = 0; i < 16 * kPages; i++) {
    simulation.Access({random.Below(kPages)});
  }
  EXPECT_LT(simulation.TakeReplacements(), 16 * kPages / 1000);  // 0.0002 of the accesses
}

TEST(TierPolicy, Heat_OneTimeScan_DoesNotEvictTheHotSet) {
  TierSimulation simulation(kPages, kFrames, FrameChoice::kHeat);
  simulation.SetPeriod(kPages);
  ScrambledZipf zipf(kPages, 0.99, 5);
  Drive(simulation, zipf, 48);
  simulation.TakeReplacements();
  for (uint64_t page = 0; page < kPages; page++) {
    simulation.Access({page});
  }
  EXPECT_LT(simulation.TakeReplacements(), kPages / 20);
  simulation.TakeMissRatio();
  Drive(simulation, zipf, 4);
  EXPECT_LT(simulation.TakeMissRatio(), 1.2 * zipf.OracleMissRatio(kFrames));
}

// A policy in which a client is told of, period by period; and how much of its heat a page keeps meanwhile.
class Judged {
 public:
  Judged() : policy_(1 << 20, FrameChoice::kHeat) {
    policy_.SetBudget(kFrames);
    policy_.Access({0}, 10, AccessKind::kWrite);
    policy_.Access({1}, 1000, AccessKind::kWrite);
  }
  // So many of 1000 reads miss.
  void Misses(uint64_t client, uint32_t misses, uint32_t thousands = 1) {
    policy_.AddTotals(client, thousands * (1000 - misses), thousands * misses);
  }
  void EndPeriod() { policy_.EndPeriod(); }
  void Periods(uint32_t count, uint32_t misses) {
    for (uint32_t i = 0; i < count; i++) {
      Misses(1, misses, 100);
      EndPeriod();
    }
  }
  float Kept() {
    const float before = std::exchange(heat_, policy_.heat({0}));
    return heat_ / before;
  }
  TierPolicy& policy() { return policy_; }

 private:
  TierPolicy policy_;
  float heat_ = 10;
};

constexpr uint32_t kSettles = 20;

TEST(TierPolicy, Heat_MoreMissesThanUsual_AreAShift) {
  struct Case {
    uint32_t usual, hits, misses;
    bool shift;
  };
  for (const Case& tried : {Case{60, 880, 120, true},
                            {60, 900, 100, true},
                            {60, 910, 90, false},
                            {0, 960, 40, true},
                            {0, 996, 4, false},
                            {500, 440, 560, false},
                            {60, 226, 30, false},
                            {60, 211, 45, true}}) {
    Judged judged;
    judged.Periods(kSettles, tried.usual);
    EXPECT_NEAR(judged.Kept(), 1, 0.01);
    judged.policy().AddTotals(1, tried.hits, tried.misses);
    judged.EndPeriod();
    EXPECT_NEAR(judged.Kept(), tried.shift ? 0.0625 : 1, 0.01)
        << tried.usual << " usual, " << tried.misses << " beside " << tried.hits;
  }
}

// The client tells of a time that lies on both sides of it first.
TEST(TierPolicy, Heat_AShift_IsForgottenOnce) {
  Judged judged;
  judged.Periods(kSettles, 60);
  judged.Kept();
  for (const uint32_t misses : {120, 370, 370, 350, 300, 200, 150, 100, 70, 60, 60}) {
    judged.Periods(1, misses);
  }
  EXPECT_NEAR(judged.Kept(), 0.0625, 0.01);
  judged.Periods(kSettles, 60);
  judged.Periods(3, 300);  // and another
  EXPECT_NEAR(judged.Kept(), 0.0625, 0.01);
}

TEST(TierPolicy, Heat_AShift_LeavesNoPageMoreThanOneAccess) {
  Judged judged;
  judged.Periods(kSettles, 60);
  EXPECT_NEAR(judged.policy().heat({1}), 1000, 1);
  judged.Periods(3, 300);
  EXPECT_NEAR(judged.policy().heat({1}), 1, 0.01);
}

TEST(TierPolicy, Heat_ASmallerTier_IsNoShift) {
  Judged judged;
  judged.Periods(kSettles, 60);
  judged.policy().SetBudget(kFrames / 2);
  judged.EndPeriod();  // what has been told is of the time before
  judged.Periods(1, 100);
  judged.Periods(kSettles, 200);
  EXPECT_NEAR(judged.Kept(), 1, 0.01);
}

// Another client's hits, which are many, come and go.
TEST(TierPolicy, Heat_EachClientHasItsOwnMeasure) {
  Judged judged;
  judged.Periods(kSettles, 60);
  for (int burst = 0; burst < 4; burst++) {
    for (int i = 0; i < 3; i++) {
      judged.Misses(2, 0, 2000);
      judged.Periods(1, 60);
    }
    judged.Periods(12, 60);
  }
  EXPECT_NEAR(judged.Kept(), 1, 0.01);
}

TEST(TierPolicy, Heat_AMomentOfHits_IsNotWhatIsUsual) {
  Judged judged;
  judged.Periods(kSettles, 60);
  judged.Periods(1, 0);
  judged.Periods(2, 60);
  EXPECT_NEAR(judged.Kept(), 1, 0.01);
}

// A scan beside the hot set makes as many misses as a shifted one, so it is taken for one; it must not cost much.
TEST(TierPolicy, Heat_ScanAmongTheHot_CostsThemFewHits) {
  for (const uint64_t period : {kPages / 8, kPages, 4 * kPages}) {
    TierSimulation simulation(kPages, kFrames, FrameChoice::kHeat);
    simulation.SetPeriod(period);
    ScrambledZipf zipf(kPages, 0.99, 5);
    Drive(simulation, zipf, 48);
    uint64_t hits = 0;
    for (uint64_t page = 0; page < kPages; page++) {
      simulation.Access({page});
      const PageIndex hot = zipf.Next();
      hits += simulation.Resident(hot) ? 1 : 0;
      simulation.Access(hot);
    }
    EXPECT_GT(static_cast<double>(hits) / kPages, 0.95 * (1 - zipf.OracleMissRatio(kFrames))) << "period " << period;
    simulation.TakeMissRatio();
    Drive(simulation, zipf, 4);
    EXPECT_LT(simulation.TakeMissRatio(), 1.5 * zipf.OracleMissRatio(kFrames)) << "period " << period;
  }
}

TEST(TierPolicy, Heat_ShiftedHotSet_IsBackSoon) {
  for (const uint64_t period : {kPages / 8, kPages, 4 * kPages}) {
    TierSimulation simulation(kPages, kFrames, FrameChoice::kHeat);
    simulation.SetPeriod(period);
    ScrambledZipf zipf(kPages, 0.99, 7);
    Drive(simulation, zipf, 48);
    zipf.Scramble();
    Drive(simulation, zipf, 8);
    simulation.TakeMissRatio();
    Drive(simulation, zipf, 4);
    EXPECT_LT(simulation.TakeMissRatio(), 1.5 * zipf.OracleMissRatio(kFrames)) << "period " << period;  // 1.23 to 1.38
    Drive(simulation, zipf, 52);
    simulation.TakeMissRatio();
    Drive(simulation, zipf, 16);
    EXPECT_LT(simulation.TakeMissRatio(), 1.15 * zipf.OracleMissRatio(kFrames)) << "period " << period;
  }
}

TEST(TierPolicy, Recent_SmallLoop_StaysResident) {
  TierSimulation simulation(kPages, kFrames, FrameChoice::kRecent);
  simulation.SetPeriod(256);
  Random random(9);
  for (uint64_t i = 0; i < 20 * kPages; i++) {
    simulation.Access({random.Below(2) == 0 ? random.Below(kFrames / 4) : random.Below(kPages)});
  }
  simulation.TakeMissRatio();
  uint64_t resident = 0;
  for (uint64_t page = 0; page < kFrames / 4; page++) {
    resident += simulation.Resident({page}) ? 1 : 0;
  }
  EXPECT_GT(resident, kFrames / 4 * 9 / 10);
}

TEST(TierPolicy, Static_NeverGivesUpAFrame) {
  TierSimulation simulation(kPages, kFrames, FrameChoice::kStatic);
  for (uint64_t i = 0; i < 4 * kPages; i++) {
    simulation.Access({i % kPages});
  }
  EXPECT_EQ(simulation.TakeReplacements(), 0U);
  EXPECT_TRUE(simulation.Resident({0}));
  EXPECT_FALSE(simulation.Resident({kPages - 1}));
}

TEST(TierPolicy, SetChoice_FromStaticToHeat_TakesEffect) {
  TierSimulation simulation(kPages, kFrames, FrameChoice::kStatic);
  for (uint64_t page = kPages; page-- > 0;) {
    simulation.Access({page});
  }
  simulation.policy().SetChoice(FrameChoice::kHeat);
  for (int i = 0; i < 100; i++) {
    simulation.Access({0});
  }
  EXPECT_TRUE(simulation.Resident({0}));
}

TEST(HeatMap, Threshold_IsTheHeatThatOnlySoManyExceed) {
  HeatMap heat(1000, 1000);
  for (uint64_t page = 0; page < 1000; page++) {
    heat.Add({page}, static_cast<uint32_t>(page + 1));
  }
  for (const uint64_t count : {10U, 100U, 500U, 900U}) {
    const float threshold = heat.Threshold(count);
    uint64_t above = 0;
    for (uint64_t page = 0; page < 1000; page++) {
      above += heat.Heat({page}) > threshold ? 1 : 0;
    }
    EXPECT_LE(above, count);
    EXPECT_GE(static_cast<double>(above), static_cast<double>(count) - 150);
  }
  EXPECT_EQ(heat.Threshold(1000), 0);
}

TEST(HeatMap, Age_ManyHalfLives_KeepsOrderAndForgetsTheOld) {
  HeatMap heat(3, 3);
  heat.Add({0}, 1000000);
  for (int i = 0; i < 300; i++) {  // beyond a float's range, were it not brought back into it
    heat.Age(0.5);
    heat.Add({1}, 2);
    heat.Add({2}, 1);
  }
  EXPECT_NEAR(heat.Heat({1}), 4, 0.1);
  EXPECT_NEAR(heat.Heat({2}), 2, 0.1);
  EXPECT_LT(heat.Heat({0}), 0.001);
  EXPECT_GE(heat.Threshold(1), 2);  // one page exceeds it: the one that has 4
  EXPECT_LT(heat.Threshold(1), 4);
}

}  // namespace
}  // namespace termfs::tlib::server
