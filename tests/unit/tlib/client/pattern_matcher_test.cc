// SPDX-License-Identifier: Apache-2.0
#include "tlib/client/pattern_matcher.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/page.h"
#include "base/random.h"

namespace termfs::tlib::client {
namespace {

class PatternMatcherTest : public testing::Test {
 protected:
  PatternMatcherTest() {
    Random random(1);
    for (std::byte& byte : pattern_.line) {
      byte = static_cast<std::byte>(random());
    }
    for (size_t i = 0; i < kPageSize; i++) {
      magic_.push_back(pattern_.line[i % 64]);
      // In no place the pattern's byte, so that only what a test plants can match.
      data_.push_back(pattern_.line[i % 64] ^ std::byte{0xff});
    }
  }
  bool Touches(const std::vector<std::byte>& page, uint32_t in_page, uint32_t length) const {
    return PatternMatcher(pattern_).Touches(page.data() + in_page, in_page, length);
  }
  driver::Pattern pattern_;
  std::vector<std::byte> magic_;
  std::vector<std::byte> data_;
};

TEST_F(PatternMatcherTest, Touches_EveryPartOfTheMagicPage) {
  for (const uint32_t in_page : {0U, 1U, 63U, 64U, 100U, 4000U}) {
    for (const uint32_t length : {1U, 7U, 63U, 64U, 65U, 90U}) {
      EXPECT_TRUE(Touches(magic_, in_page, length)) << in_page << " " << length;
      EXPECT_FALSE(Touches(data_, in_page, length)) << in_page << " " << length;
      EXPECT_TRUE(PatternMatcher(pattern_).IsPattern(magic_.data() + in_page, in_page, length));
      EXPECT_FALSE(PatternMatcher(pattern_).IsPattern(data_.data() + in_page, in_page, length));
    }
  }
}

// A real RNIC may deliver any part of a page from before the mapping changed, and the rest from after it.
TEST_F(PatternMatcherTest, Touches_AnyOneLineOfMagicAmongData) {
  for (uint32_t line = 0; line < 64; line++) {
    auto page = data_;
    std::copy_n(magic_.begin() + line * 64, 64, page.begin() + line * 64);
    EXPECT_TRUE(Touches(page, 0, kPageSize)) << line;
    page[line * 64 + 63] ^= std::byte{1};
    EXPECT_FALSE(Touches(page, 0, kPageSize)) << line;
  }
}

TEST_F(PatternMatcherTest, Touches_PiecesAtTheEnds) {
  auto head = data_;
  std::copy_n(magic_.begin() + 50, 14, head.begin() + 50);
  EXPECT_TRUE(Touches(head, 50, 500));
  EXPECT_FALSE(Touches(head, 49, 500));  // the piece begins with a byte of data
  auto tail = data_;
  std::copy_n(magic_.begin() + 512, 20, tail.begin() + 512);
  EXPECT_TRUE(Touches(tail, 50, 512 + 20 - 50));
  EXPECT_FALSE(Touches(tail, 50, 512 + 21 - 50));
}

TEST_F(PatternMatcherTest, Touches_APrefixAloneIsData) {
  auto page = data_;
  std::copy_n(magic_.begin(), 63, page.begin());
  EXPECT_FALSE(Touches(page, 0, kPageSize));
}

}  // namespace
}  // namespace termfs::tlib::client
