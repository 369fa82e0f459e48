// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/promoter.h"

#include <gtest/gtest.h>

#include <array>

#include "base/metrics.h"
#include "driver/softnic/softnic.h"
#include "tests/fakes/fake_block_device.h"
#include "tests/unit/tlib/server_storage/task_fixture.h"
#include "tests/unit/tlib/server_storage/thread_faults.h"

namespace termfs::tlib::server {
namespace {

constexpr uint64_t kPages = uint64_t{4} << 20;  // 16 GiB
constexpr uint32_t kFrames = 1024;

// A tier with its parts, without a region around it. No page was ever written, so no device is needed for pages.
class Tier {
 public:
  Tier()
      : nic_(*driver::CreateSoftNic()),
        domain_(*nic_->CreateProtectionDomain()),
        term_(*domain_->RegisterTermRegion(Options())),
        log_(*WrittenLog::Open(log_device_, kPages)) {
    EXPECT_TRUE(frames_.SetLimit(kFrames, nullptr).ok());
    supply_.SetHandRange(kFrames);
    policy_.SetBudget(kFrames);
  }

  Promoter& promoter() { return promoter_; }
  uint64_t promotions() const { return metrics_.promotions.value(); }

 private:
  static driver::TermRegionOptions Options() {
    driver::TermRegionOptions options;
    options.kind = driver::RegionKind::kTerm;
    options.pages = options.max_pages = kPages;
    return options;
  }
  static std::shared_ptr<FakeMedium> FormattedLog() {
    auto medium = std::make_shared<FakeMedium>(WrittenLog::BytesFor(kPages), std::byte{0});
    FakeBlockDevice device(medium);
    EXPECT_TRUE(WrittenLog::Format(device, kPages).ok());
    return medium;
  }

  const std::unique_ptr<driver::Nic> nic_;
  const std::unique_ptr<driver::ProtectionDomain> domain_;
  const std::unique_ptr<driver::TermRegion> term_;
  MetricsRegistry registry_;
  StorageMetrics metrics_{registry_};
  FakeBlockDevice device_{std::make_shared<FakeMedium>(kPageSize, std::byte{0})};
  FakeBlockDevice log_device_{FormattedLog()};
  const std::unique_ptr<WrittenLog> log_;
  const SparseArray<std::atomic<uint64_t>> cells_{kPages};
  PageStates states_{*term_, std::span(&cells_[0], kPages)};
  Frames frames_{*term_};
  TierPolicy policy_{kPages, FrameChoice::kHeat};
  FrameSupply supply_{frames_, states_, policy_, metrics_, kFrames};
  Cleaner cleaner_{device_, *log_, frames_, states_, supply_, metrics_};
  Pager pager_{device_, frames_, states_, supply_, policy_, cleaner_, metrics_};
  Promoter promoter_{policy_, states_, pager_, std::chrono::hours(1)};
};

TEST(Promoter, Round_WalksOverAShareOfTheRegion) {
  constexpr int64_t kAllCells = kPages * sizeof(uint64_t) / kPageSize;  // of the page states alone
  TaskRunner runner(1);
  Tier tier;
  runner.Run([&] {
    ThreadFaults faults;
    tier.promoter().Start(runner.spawner());
    for (uint32_t round = 1; round <= 5; round++) {
      // Hot, and absent: the round loads it when it has looked for others.
      const HeatEntry hot{.page = round, .accesses = 1000};
      tier.promoter().AddCounts({&hot, 1});
      tier.promoter().Kick();
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (tier.promotions() < round && std::chrono::steady_clock::now() < deadline) {
        Task::Yield();
      }
      ASSERT_EQ(tier.promotions(), round);
      EXPECT_LT(faults.Take(), kAllCells / 4) << "in round " << round;
    }
    tier.promoter().Stop();
  });
}

}  // namespace
}  // namespace termfs::tlib::server
