// SPDX-License-Identifier: Apache-2.0
#include "base/streaming_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace termfs {
namespace {

TEST(CopyPageStreaming, AnySource_IsCopiedAndNothingElseIsTouched) {
  constexpr std::byte kBefore{0x5a};
  alignas(kPageSize) static std::array<std::byte, 3 * kPageSize> to;
  static std::array<std::byte, 2 * kPageSize> from;
  for (size_t i = 0; i < from.size(); i++) {
    from[i] = static_cast<std::byte>(i * 7 + i / 256);
  }
  for (const size_t at : {0, 1, 15, 16, 4095}) {
    to.fill(kBefore);
    CopyPageStreaming(to.data() + kPageSize, from.data() + at);
    EXPECT_TRUE(std::equal(to.begin() + kPageSize, to.begin() + 2 * kPageSize, from.begin() + at)) << at;
    EXPECT_EQ(std::count(to.begin(), to.begin() + kPageSize, kBefore), kPageSize);
    EXPECT_EQ(std::count(to.begin() + 2 * kPageSize, to.end(), kBefore), kPageSize);
  }
}

}  // namespace
}  // namespace termfs
