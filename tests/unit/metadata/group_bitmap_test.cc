// SPDX-License-Identifier: Apache-2.0
#include "metadata/group_bitmap.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

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

std::string Encoded(const std::vector<PageRun>& taken) {
  GroupBitmap bitmap(kGroupPages);
  for (const PageRun& run : taken) {
    bitmap.Take(run);
  }
  return bitmap.Encode();
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

TEST(GroupBitmap, Encode_SaysFewRunsShortlyAndManyInFull) {
  EXPECT_EQ(Encoded({}).size(), 1u);
  EXPECT_EQ(Encoded({{0, kGroupPages}}).size(), 3u);
  EXPECT_EQ(Encoded({{0, 5}, {100, 1}, {kGroupPages - 1, 1}}).size(), 11u);
  std::mt19937 random(7);
  for (const uint32_t runs : {0u, 1u, 5u, 1000u, 1023u, 1024u, 5000u, 40000u}) {
    GroupBitmap bitmap(kGroupPages);
    std::vector<bool> taken(kGroupPages);
    for (uint32_t i = 0; i < runs; ++i) {
      const uint32_t page = random() % kGroupPages;
      bitmap.Take({page, 1});
      taken[page] = true;
    }
    const std::string bytes = bitmap.Encode();
    EXPECT_LE(bytes.size(), kGroupPages / 8 + 1);
    const auto decoded = GroupBitmap::Decode(kGroupPages, bytes);
    ASSERT_TRUE(decoded.ok()) << runs;
    for (uint32_t page = 0; page < kGroupPages; ++page) {
      ASSERT_EQ(decoded->taken(page), taken[page]) << runs << " runs, page " << page;
    }
  }
}

TEST(GroupBitmap, Decode_ReturnsWhatIsJustShortAndJustNot) {
  constexpr uint32_t kMost = kGroupPages / 16;  // changes, from which on all words are shorter
  for (uint32_t changes = kMost - 3; changes <= kMost + 3; ++changes) {
    GroupBitmap bitmap(kGroupPages);
    for (uint32_t i = 0; i < changes / 2; ++i) {
      bitmap.Take({2 * i + 1, 1});
    }
    if (changes % 2 != 0) {
      bitmap.Take({kGroupPages - 1, 1});
    }
    const std::string bytes = bitmap.Encode();
    EXPECT_EQ(bytes.size(), changes < kMost ? 1 + 2 * changes : 1 + kGroupPages / 8) << changes;
    const auto decoded = GroupBitmap::Decode(kGroupPages, bytes);
    ASSERT_TRUE(decoded.ok()) << changes;
    for (uint32_t page = 0; page < kGroupPages; ++page) {
      ASSERT_EQ(decoded->taken(page), bitmap.taken(page)) << changes << " changes, page " << page;
    }
  }
}

TEST(GroupBitmap, Decode_KnowsWhatOlderProgramsWrote) {
  std::string bytes = "\1" + std::string(kGroupPages / 8, '\0');
  bytes[8] = 0x07;  // the last byte of the first word
  const auto decoded = GroupBitmap::Decode(kGroupPages, bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->CountFree(), kGroupPages - 3);
  EXPECT_TRUE(decoded->AllTaken({0, 3}));
  bytes.pop_back();
  EXPECT_EQ(GroupBitmap::Decode(kGroupPages, bytes).status().code(), EIO);
}

TEST(GroupBitmap, Decode_RefusesChangesThatAreNone) {
  using std::string_literals::operator""s;
  const auto code = [](std::string_view bytes) { return GroupBitmap::Decode(kGroupPages, bytes).status().code(); };
  EXPECT_EQ(code("\2\0\0\0\1"s), 0);
  EXPECT_EQ(code("\2\0\0\0\0"s), EIO) << "twice the same";
  EXPECT_EQ(code("\2\0\5\0\4"s), EIO) << "descending";
  EXPECT_EQ(code("\2\x80\0"s), EIO) << "beyond the group";
  EXPECT_EQ(code("\2\0\1\0"s), EIO) << "half a page number";
  std::string many = "\2";
  for (uint32_t page = 0; page < kGroupPages / 16; ++page) {
    many += {static_cast<char>(page >> 8), static_cast<char>(page)};
  }
  EXPECT_EQ(code(many), EIO) << "longer than all words";
  EXPECT_EQ(code("\3"), EIO);
  EXPECT_EQ(code(""), EIO);
}

}  // namespace
}  // namespace termfs::metadata
