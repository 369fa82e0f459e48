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

void Pause(milliseconds time) {
  for (const auto end = steady_clock::now() + time; steady_clock::now() < end;) {
    Task::ParkUntil(end);
  }
}

// Pauses, on a busy machine for longer: until at most `dirty` pages are. The marks of the others follow within a
// moment.
void PauseUntil(RegionFixture& fixture, uint64_t dirty) {
  const auto deadline = steady_clock::now() + milliseconds(200);
  do {
    Pause(milliseconds(1));
  } while (fixture.Gauge("pages_dirty") > dirty && steady_clock::now() < deadline);
}

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
        PauseUntil(fixture, kFrames / 16);
      }
    }
  });
  EXPECT_GT(in_frames, (kPages - kFrames) / 2);
}

TEST(Cleaning, AbsentPagesAreWrittenInLongRuns_TheyPassThroughFrames) {
  constexpr uint64_t kPages = 8192;
  constexpr uint64_t kFrames = 2048;
  constexpr uint64_t kRun = 64;
  RegionFixture fixture({.pages = kPages, .dram_ratio = 0.25});
  const auto pages_in_frames = [&](Region& region, uint64_t first) {
    uint64_t in_frames = 0;
    for (uint64_t page = first; page < kPages; page += kRun) {
      EXPECT_TRUE(region.Write({page * kPageSize}, std::vector(kRun * kPageSize, std::byte{5})).ok());
      for (uint64_t i = 0; i < kRun; i++) {
        in_frames += fixture.term().Published({page + i}) != nullptr ? 1 : 0;
      }
      PauseUntil(fixture, kFrames / 2);
    }
    return in_frames;
  };
  fixture.Run([&](Region& region) {
    EXPECT_GT(pages_in_frames(region, 0), kFrames + (kPages - kFrames) / 2) << "new pages";
    EXPECT_GT(pages_in_frames(region, kFrames), (kPages - kFrames) / 2) << "once more";
  });
}

TEST(Cleaning, TheSsdIsBeingFlushed_WhatPassesIsWrittenBackMeanwhile) {
  constexpr uint64_t kFrames = 4096;
  constexpr uint64_t kRun = 64;
  RegionFixture fixture({.pages = 4 * kFrames, .dram_ratio = 0.25});
  fixture.device().HoldFlushes();
  fixture.Run([&](Region& region) {
    for (uint64_t page = 0; page < kFrames; page += kRun) {
      EXPECT_TRUE(region.Write({page * kPageSize}, std::vector(kRun * kPageSize, std::byte{5})).ok());
    }
  });
  constexpr uint64_t kBatch = 512;  // after that one, those that do not pass wait for the flush
  EXPECT_TRUE(Eventually([&] { return fixture.Count("write_backs_total") > kBatch; }, std::chrono::seconds(5)));
  fixture.device().LetGo();
}

}  // namespace
}  // namespace termfs::tlib::server
