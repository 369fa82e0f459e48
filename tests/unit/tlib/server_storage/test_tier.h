// SPDX-License-Identifier: Apache-2.0
//
// TestTier: a tier's parts, tied together as in a region, with a software RNIC's page table and devices in memory.
//
// Thread-safety: none.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "base/metrics.h"
#include "driver/softnic/softnic.h"
#include "tests/fakes/fake_block_device.h"
#include "tlib/server/promoter.h"
#include "tlib/server/written_log.h"

namespace termfs::tlib::server {

struct TestTier {
  // `budget`: frames. The device is too small for pages, unless it is told how many.
  TestTier(uint64_t pages, uint32_t budget, uint64_t device_pages = 0)
      : term(*domain->RegisterTermRegion(Options(pages))),
        device(std::make_shared<FakeMedium>(std::max<uint64_t>(device_pages, 1) * kPageSize, std::byte{0})),
        log_device(FormattedLog(pages)),
        log(*WrittenLog::Open(log_device, pages)),
        cells(pages),
        states(*term, std::span(&cells[0], pages)),
        policy(pages, FrameChoice::kHeat),
        supply(frames, states, policy, metrics, static_cast<uint32_t>(pages)) {
    policy.SetBudget(budget);
  }

  static driver::TermRegionOptions Options(uint64_t pages) {
    driver::TermRegionOptions options;
    options.kind = driver::RegionKind::kTerm;
    options.pages = options.max_pages = pages;
    return options;
  }
  static std::shared_ptr<FakeMedium> FormattedLog(uint64_t pages) {
    auto medium = std::make_shared<FakeMedium>(WrittenLog::BytesFor(pages), std::byte{0});
    FakeBlockDevice device(medium);
    EXPECT_TRUE(WrittenLog::Format(device, pages).ok());
    return medium;
  }
  bool present_bit(PageIndex page) const { return (term->bitmap()[page.value / 64] >> (page.value % 64) & 1) != 0; }

  const std::unique_ptr<driver::Nic> nic = *driver::CreateSoftNic();
  const std::unique_ptr<driver::ProtectionDomain> domain = *nic->CreateProtectionDomain();
  const std::unique_ptr<driver::TermRegion> term;
  MetricsRegistry registry;
  StorageMetrics metrics{registry};
  FakeBlockDevice device;
  FakeBlockDevice log_device;
  const std::unique_ptr<WrittenLog> log;
  const SparseArray<std::atomic<uint64_t>> cells;
  PageStates states;
  Frames frames{*term};
  TierPolicy policy;
  FrameSupply supply;
  Cleaner cleaner{device, *log, frames, states, supply, metrics};
  Pager pager{device, frames, states, supply, policy, cleaner, metrics, std::chrono::seconds(60)};
};

}  // namespace termfs::tlib::server
