// SPDX-License-Identifier: Apache-2.0
#include "metadata/group_bitmap.h"

#include <gtest/gtest.h>

namespace termfs::metadata {
namespace {

TEST(GroupBitmap, NextFree_CrossesWordsAndEndsAtTheGroup) {
  GroupBitmap bitmap(1000);
  bitmap.Take({0, 130});
  bitmap.Take({200, 1});
  EXPECT_EQ(bitmap.NextFree(0).first, 130u);
  EXPECT_EQ(bitmap.NextFree(0).pages, 70u);
  EXPECT_EQ(bitmap.NextFree(200).first, 201u);
  EXPECT_EQ(bitmap.NextFree(201).pages, 799u);
  EXPECT_EQ(bitmap.NextFree(1000).pages, 0u);
  EXPECT_EQ(bitmap.CountFree(), 1000u - 131u);
}

TEST(GroupBitmap, FindFree_PrefersAfterFromThenAnyThenLongest) {
  GroupBitmap bitmap(kGroupPages);
  bitmap.Take({0, kGroupPages});
  bitmap.Release({10, 5});
  bitmap.Release({100, 8});
  bitmap.Release({kGroupPages - 3, 3});
  EXPECT_EQ(bitmap.FindFree(0, 4).first, 10u);
  EXPECT_EQ(bitmap.FindFree(50, 4).first, 100u);
  EXPECT_EQ(bitmap.FindFree(120, 4).first, 10u);
  EXPECT_EQ(bitmap.FindFree(120, 9).first, 100u);
  EXPECT_EQ(bitmap.LongestFree(), 8u);
}

TEST(GroupBitmap, Decode_ReturnsWhatWasEncodedAndRefusesOtherBytes) {
  GroupBitmap bitmap(77);
  bitmap.Take({3, 70});
  const std::string bytes = bitmap.Encode();
  const auto decoded = GroupBitmap::Decode(77, bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->CountFree(), 7u);
  EXPECT_TRUE(decoded->AllTaken({3, 70}));
  EXPECT_FALSE(decoded->AllTaken({2, 70}));
  EXPECT_EQ(GroupBitmap::Decode(77, bytes + "x").status().code(), EIO);
  EXPECT_EQ(GroupBitmap::Decode(77, bytes.substr(1)).status().code(), EIO);
}

}  // namespace
}  // namespace termfs::metadata
