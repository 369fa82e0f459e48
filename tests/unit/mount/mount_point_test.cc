// SPDX-License-Identifier: Apache-2.0
#include "mount/mount_point.h"

#include <gtest/gtest.h>

namespace termfs::mount {

TEST(MountDescription, ALineKeepsEveryValue) {
  for (const char* value : {"", "/vol", "a\nb", "a\\nb", "\\", "\n", "\\\\\n\\n"}) {
    const std::string line = ToLine(value);
    EXPECT_EQ(line.find('\n'), std::string::npos);
    EXPECT_EQ(FromLine(line), value);
  }
  EXPECT_EQ(ToLine("a b"), "a b");
}

TEST(MountDescription, BucketsOfAHistogram) {
  const Buckets buckets = {{3, 1}, {40, 18'446'744'073'709'551'615U}};
  EXPECT_EQ(BucketsToText({}), "");
  EXPECT_EQ(BucketsToText(buckets), " 3:1,40:18446744073709551615");
  const Result<Buckets> read = BucketsFromText(BucketsToText(buckets));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, buckets);
  for (const char* bad : {" ", " 3", " 3:", " 3:1,", " x:1", " 99999:1", " 3:99999999999999999999999"}) {
    EXPECT_EQ(BucketsFromText(bad).status().code(), EPROTO) << bad;
  }
}

}  // namespace termfs::mount
