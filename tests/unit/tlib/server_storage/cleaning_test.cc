// SPDX-License-Identifier: Apache-2.0
//
// What a region writes back ahead of need, and what it leaves alone.
#include <gtest/gtest.h>

#include "tests/unit/eventually.h"
#include "tests/unit/tlib/server_storage/region_fixture.h"

namespace termfs::tlib::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::vector<std::byte> Page(int value) { return std::vector(kPageSize, static_cast<std::byte>(value)); }

void WritePages(Region& region, uint64_t first, uint64_t count, int value) {
  for (uint64_t page = first; page < first + count; page++) {
    EXPECT_TRUE(region.Write({page * kPageSize}, Page(value)).ok());
  }
}

void Pause(milliseconds time) { Task::ParkUntil(steady_clock::now() + time); }

TEST(Cleaning, MoreThanHalfIsDirty_WhatIsWrittenAllTheTimeStaysDirty) {
  constexpr uint64_t kHot = 600;
  constexpr uint64_t kCold = 250;
  RegionFixture fixture({.pages = 2048, .dram_ratio = 0.5});
  fixture.Run([&](Region& region) {
    // The oldest in the queue are the hot ones.
    for (int i = 1; i <= 40; i++) {
      WritePages(region, 0, kHot, i);
    }
    Pause(milliseconds(100));  // periods of the policy
    WritePages(region, kHot, kCold, 1);
  });
  EXPECT_TRUE(Eventually([&] { return fixture.Gauge("pages_dirty") <= kHot; }));
  fixture.Run([&](Region&) { Pause(milliseconds(1200)); });  // two rounds of the cleaner
  EXPECT_EQ(fixture.Gauge("pages_dirty"), kHot);
}

TEST(Cleaning, NearlyAllIsDirty_EvenWhatIsHotIsWrittenBack) {
  constexpr uint64_t kHot = 950;
  RegionFixture fixture({.pages = 2048, .dram_ratio = 0.5});
  fixture.Run([&](Region& region) {
    for (int i = 1; i <= 40; i++) {
      WritePages(region, 0, kHot, i);
    }
  });
  EXPECT_TRUE(Eventually([&] { return fixture.Gauge("pages_dirty") <= 1024U * 13 / 16; }));
}

TEST(Cleaning, AbsentPagesAreWrittenOneByOne_TheyPassThroughFrames) {
  constexpr uint64_t kPages = 2048;
  constexpr uint64_t kFrames = 512;
  RegionFixture fixture({.pages = kPages, .dram_ratio = 0.25});
  uint64_t in_frames = 0;
  fixture.Run([&](Region& region) {
    WritePages(region, 0, kFrames, 1);
    const PageRange all{.first = {0}, .count = kPages};
    EXPECT_TRUE(region.Flush({&all, 1}).ok());
    for (uint64_t page = kFrames; page < kPages; page++) {
      EXPECT_TRUE(region.Write({page * kPageSize + 100}, std::vector(300, std::byte{2})).ok());
      in_frames += fixture.term().Published({page}) != nullptr ? 1 : 0;
      if (page % 4 == 0) {
        Pause(milliseconds(1));
      }
    }
  });
  EXPECT_GT(in_frames, (kPages - kFrames) / 2);
}

}  // namespace
}  // namespace termfs::tlib::server
