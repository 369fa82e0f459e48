// SPDX-License-Identifier: Apache-2.0
//
// What the policy keeps, against an oracle that knows every page's probability. No I/O, fixed seeds: these are tests of
// the choice, not of speed. The bounds leave slack to what was measured (in brackets).
#include "tlib/server/tier_policy.h"

#include <gtest/gtest.h>

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

// How much of its heat a page keeps when in two periods of 1000 reads so many miss, at most.
float HeatAfter(TierPolicy& policy, uint32_t usual, uint32_t now, uint32_t of = 1000) {
  policy.Access({0}, 1000, AccessKind::kWrite);
  policy.AddTotals(1, 100'000 - usual * 100, usual * 100);
  policy.EndPeriod();
  const float before = policy.heat({0});
  policy.AddTotals(1, of - now, now);
  policy.EndPeriod();
  return policy.heat({0}) / before;
}

TEST(TierPolicy, Heat_MoreMissesThanUsual_AreAShift) {
  struct Case {
    uint32_t usual, now, of;
    bool shift;
  };
  for (const Case& tried : {Case{60, 120, 1000, true},
                            {60, 95, 1000, false},
                            {0, 40, 1000, true},
                            {0, 4, 1000, false},
                            {500, 560, 1000, false},
                            {60, 30, 256, false},
                            {60, 45, 256, true}}) {
    TierPolicy policy(1 << 20, FrameChoice::kHeat);
    policy.SetBudget(kFrames);
    const float kept = HeatAfter(policy, tried.usual, tried.now, tried.of);
    EXPECT_NEAR(kept, tried.shift ? 0.0625 : 1, 0.01) << tried.usual << " " << tried.now << " of " << tried.of;
  }
}

TEST(TierPolicy, Heat_ASmallerTier_IsNoShift) {
  TierPolicy policy(1 << 20, FrameChoice::kHeat);
  policy.SetBudget(kFrames);
  EXPECT_NEAR(HeatAfter(policy, 60, 60), 1, 0.01);
  policy.SetBudget(kFrames / 2);
  policy.AddTotals(1, 8000, 2000);
  const float before = policy.heat({0});
  policy.EndPeriod();
  EXPECT_NEAR(policy.heat({0}) / before, 1, 0.01);
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
