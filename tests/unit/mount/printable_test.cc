// SPDX-License-Identifier: Apache-2.0
#include "mount/printable.h"

#include <gtest/gtest.h>

namespace termfs::mount {
namespace {

TEST(Printable, ControlCharacters_AreNotLeft) {
  EXPECT_EQ(Printable("/a\nb\x1b[2J\x7f"), "/a?b?[2J?");
  EXPECT_EQ(Printable("/a\xc2\x9b"
                      "2J"),
            "/a?2J");
}

TEST(Printable, Letters_Stay) {
  EXPECT_EQ(Printable("/B\xc3\xbc"
                      "cher \xc2\xa0~"),
            "/B\xc3\xbc"
            "cher \xc2\xa0~");
  EXPECT_EQ(Printable("\xc2"), "\xc2");
  EXPECT_EQ(Printable(""), "");
}

}  // namespace
}  // namespace termfs::mount
