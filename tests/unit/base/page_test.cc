// SPDX-License-Identifier: Apache-2.0
#include "base/page.h"

#include <gtest/gtest.h>

namespace termfs {
namespace {

TEST(RegionOffset, PageAndRest_GiveTheOffsetAgain) {
  for (const uint64_t bytes : {0UL, 1UL, 4095UL, 4096UL, 4097UL, (1UL << 52) + 4095}) {
    const RegionOffset offset{bytes};
    EXPECT_EQ(StartOf(offset.page()).value + offset.in_page(), bytes);
    EXPECT_LT(offset.in_page(), kPageSize);
  }
}

TEST(RoundToPage, Bounds_AreTheNextWholePages) {
  EXPECT_EQ(RoundDownToPage(0), 0U);
  EXPECT_EQ(RoundUpToPage(0), 0U);
  EXPECT_EQ(RoundDownToPage(4095), 0U);
  EXPECT_EQ(RoundUpToPage(1), 4096U);
  EXPECT_EQ(RoundDownToPage(4096), 4096U);
  EXPECT_EQ(RoundUpToPage(4096), 4096U);
  EXPECT_EQ(RoundUpToPage(4097), 8192U);
}

}  // namespace
}  // namespace termfs
