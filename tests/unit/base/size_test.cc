// SPDX-License-Identifier: Apache-2.0
#include "base/size.h"

#include <gtest/gtest.h>

namespace termfs {

TEST(ReadableSize, IsExactWhereThatIsShort) {
  EXPECT_EQ(ReadableSize(0), "0 bytes");
  EXPECT_EQ(ReadableSize(512), "512 bytes");
  EXPECT_EQ(ReadableSize(4096), "4 KiB");
  EXPECT_EQ(ReadableSize(uint64_t{16} << 20), "16 MiB");
  EXPECT_EQ(ReadableSize(uint64_t{2} << 30), "2 GiB");
  EXPECT_EQ(ReadableSize((uint64_t{1} << 30) + (1 << 20)), "1025 MiB");
  EXPECT_EQ(ReadableSize(uint64_t{1} << 63), "8 EiB");
}

TEST(ReadableSize, IsRoundedWhereThatWouldBeLong) {
  EXPECT_EQ(ReadableSize(2'000'001), "1.91 MiB");
  EXPECT_EQ(ReadableSize((uint64_t{100} << 30) + (1 << 20)), "100.00 GiB");
  EXPECT_EQ(ReadableSize(UINT64_MAX), "16.00 EiB");
}

}  // namespace termfs
