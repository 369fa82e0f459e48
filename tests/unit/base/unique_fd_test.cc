// SPDX-License-Identifier: Apache-2.0
#include "base/unique_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>

namespace termfs {
namespace {

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

UniqueFd OpenNull() { return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

TEST(UniqueFd, Destructor_Closes) {
  int number = -1;
  {
    const UniqueFd fd = OpenNull();
    number = fd.get();
    ASSERT_TRUE(IsOpen(number));
  }
  EXPECT_FALSE(IsOpen(number));
  EXPECT_FALSE(UniqueFd().valid());
}

TEST(UniqueFd, Move_LeavesOneOwner) {
  UniqueFd a = OpenNull();
  const int number = a.get();
  UniqueFd b = std::move(a);
  EXPECT_FALSE(a.valid());  // NOLINT(bugprone-use-after-move): what a moved-from descriptor is, is promised
  EXPECT_EQ(b.get(), number);
  UniqueFd c = OpenNull();
  const int closed = c.get();
  c = std::move(b);
  EXPECT_EQ(c.get(), number);
  EXPECT_TRUE(IsOpen(number));
  EXPECT_FALSE(IsOpen(closed));
}

TEST(UniqueFd, Release_GivesItAway) {
  UniqueFd a = OpenNull();
  const UniqueFd b(a.release());
  EXPECT_FALSE(a.valid());
  EXPECT_TRUE(IsOpen(b.get()));
}

}  // namespace
}  // namespace termfs
