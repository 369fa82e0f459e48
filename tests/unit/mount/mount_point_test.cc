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

}  // namespace termfs::mount
