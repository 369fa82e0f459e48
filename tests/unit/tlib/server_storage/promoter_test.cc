// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/promoter.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "tests/unit/tlib/server_storage/task_fixture.h"
#include "tests/unit/tlib/server_storage/test_tier.h"
#include "tests/unit/tlib/server_storage/thread_faults.h"

namespace termfs::tlib::server {
namespace {

TEST(Promoter, Round_WalksOverAShareOfTheRegion) {
  constexpr uint64_t kPages = uint64_t{4} << 20;  // 16 GiB
  constexpr uint32_t kFrames = 1024;
  constexpr int64_t kAllCells = kPages * sizeof(uint64_t) / kPageSize;  // of the page states alone
  TaskRunner runner(1);
  TestTier tier(kPages, kFrames);
  ASSERT_TRUE(tier.frames.SetLimit(kFrames, nullptr).ok());
  tier.supply.SetHandRange(kFrames);
  Promoter promoter(tier.policy, tier.states, tier.pager, std::chrono::hours(1));
  runner.Run([&] {
    ThreadFaults faults;
    promoter.Start(runner.spawner());
    for (uint32_t round = 1; round <= 5; round++) {
      // Hot, and absent: the round loads it when it has looked for others.
      const HeatEntry hot{.page = round, .accesses = 1000};
      promoter.AddCounts({&hot, 1});
      promoter.Kick();
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (tier.metrics.promotions.value() < round && std::chrono::steady_clock::now() < deadline) {
        Task::Yield();
      }
      EXPECT_EQ(tier.metrics.promotions.value(), round);
      EXPECT_LT(faults.Take(), kAllCells / 4) << "in round " << round;
    }
    promoter.Stop();
  });
}

// One page that the SSD cannot read is no reason to leave the others there.
TEST(Promoter, Round_WithAnUnreadablePage_LoadsTheOthers) {
  constexpr uint64_t kPages = 4096;
  constexpr uint32_t kFrames = 1024;
  constexpr uint32_t kHot = 1000;  // several windows
  TaskRunner runner(1);
  TestTier tier(kPages, kFrames, kPages);
  ASSERT_TRUE(tier.frames.SetLimit(kFrames, nullptr).ok());
  tier.supply.SetHandRange(kFrames);
  PageEntry on_ssd;
  on_ssd.set_on_ssd(true);
  std::vector<HeatEntry> hot;
  for (uint32_t i = 0; i < kHot; i++) {
    hot.push_back({.page = 2 * i, .accesses = 1000});  // apart: each is read by itself
    tier.cells[2 * i].store(on_ssd.bits());
  }
  std::atomic<bool> failing = true;
  tier.device.InjectFault([&](const BlockIo& io) { return io.offset == 0 && failing ? EIO : 0; });
  Promoter promoter(tier.policy, tier.states, tier.pager, std::chrono::hours(1));
  const auto await = [&](uint64_t promotions) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (tier.metrics.promotions.value() < promotions && std::chrono::steady_clock::now() < deadline) {
      Task::Yield();
    }
    EXPECT_EQ(tier.metrics.promotions.value(), promotions);
  };
  runner.Run([&] {
    promoter.AddCounts(hot);
    promoter.Start(runner.spawner());
    await(kHot - 1);
    EXPECT_FALSE(tier.states.Peek({0}).present());
    failing = false;
    promoter.Kick();
    await(kHot);
    promoter.Stop();
  });
}

}  // namespace
}  // namespace termfs::tlib::server
