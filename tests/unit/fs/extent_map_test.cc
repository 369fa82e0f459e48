// SPDX-License-Identifier: Apache-2.0
#include "fs/extent_map.h"

#include <gtest/gtest.h>

#include <array>

#include "base/random.h"

namespace termfs::fs {

constexpr uint64_t kUnknown = kHole - 1;

// Against an array of pages.
TEST(ExtentMap, RandomSets_AgreeWithAnArray) {
  constexpr uint64_t kPages = 64;
  Random random(7);
  for (int round = 0; round < 300; ++round) {
    ExtentMap map;
    std::array<uint64_t, kPages> model;
    model.fill(kUnknown);
    for (int step = 0; step < 40; ++step) {
      const uint64_t page = random.Below(kPages);
      const uint64_t pages = 1 + random.Below(kPages - page);
      const uint64_t region = random.Below(3) == 0 ? kHole : page + 100 * random.Below(2);
      const bool only_unknown = random.Below(3) == 0;
      const Segment segment{page, pages, region};
      if (only_unknown) {
        map.FillUnknown(segment);
      } else {
        map.Set(segment);
      }
      for (uint64_t i = page; i < page + pages; ++i) {
        if (!only_unknown || model[i] == kUnknown) {
          model[i] = segment.region_of(i);
        }
      }
      const Segment* last = nullptr;
      for (const Segment& s : map.segments()) {
        ASSERT_GT(s.pages, 0u);
        if (last != nullptr) {
          ASSERT_LE(last->end(), s.file_page);
          const bool mergeable = last->end() == s.file_page &&
                                 (last->is_hole() ? s.is_hole() : last->region_page + last->pages == s.region_page);
          ASSERT_FALSE(mergeable);
        }
        last = &s;
      }
    }
    for (uint64_t i = 0; i < kPages; ++i) {
      const ptrdiff_t found = map.Find(i);
      ASSERT_EQ(found < 0 ? kUnknown : map.segments()[static_cast<size_t>(found)].region_of(i), model[i]);
      ASSERT_EQ(map.Allocated(i, i + 1), model[i] != kUnknown && model[i] != kHole);
      ASSERT_EQ(map.FirstUnknown(i, i + 1), model[i] == kUnknown ? i : i + 1);
    }
    uint64_t covered = 0;
    for (const Segment& s : map.Cut(5, 50)) {
      ASSERT_GE(s.file_page, 5u);
      ASSERT_LE(s.end(), 50u);
      covered += s.pages;
    }
    uint64_t known = 0;
    for (uint64_t i = 5; i < 50; ++i) {
      known += model[i] != kUnknown;
    }
    ASSERT_EQ(covered, known);
  }
}

TEST(ExtentMap, Allocated_EmptyRangeIs) { EXPECT_TRUE(ExtentMap().Allocated(5, 5)); }

}  // namespace termfs::fs
