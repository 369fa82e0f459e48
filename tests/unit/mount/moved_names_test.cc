// SPDX-License-Identifier: Apache-2.0
#include "mount/moved_names.h"

#include <gtest/gtest.h>

namespace termfs::mount {
namespace {

using Name = MovedNames::Name;
using Names = std::vector<Name>;

const MovedNames::Time kNow{std::chrono::seconds(100)};
const MovedNames::Time kLater = kNow + std::chrono::seconds(10);

TEST(MovedNames, Where_FollowsRenamesInTheirOrder) {
  MovedNames moved(9);
  moved.Add({1, "b"}, {1, "z"}, false, kLater);  // what "a" was had not come there yet
  moved.Add({1, "a"}, {1, "b"}, false, kLater);
  moved.Add({2, "b"}, {2, "y"}, false, kLater);  // another directory
  moved.Add({1, "b"}, {2, "c"}, false, kLater);
  EXPECT_EQ(moved.Where(1, "a", kNow), (Names{{1, "b"}, {2, "c"}}));
  EXPECT_EQ(moved.Where(2, "c", kNow), Names{});
  EXPECT_EQ(moved.Where(1, "unknown", kNow), Names{});
}

TEST(MovedNames, Where_AnExchangeMovesBoth) {
  MovedNames moved(9);
  moved.Add({1, "a"}, {1, "b"}, true, kLater);
  EXPECT_EQ(moved.Where(1, "a", kNow), (Names{{1, "b"}}));
  EXPECT_EQ(moved.Where(1, "b", kNow), (Names{{1, "a"}}));
  moved.Add({1, "b"}, {1, "a"}, false, kLater);
  EXPECT_EQ(moved.Where(1, "a", kNow), (Names{{1, "b"}})) << "it is back, or still there";
}

TEST(MovedNames, Where_ForgetsWhatTheKernelDoesNotUseAnyMore) {
  MovedNames moved(9);
  moved.Add({1, "a"}, {1, "b"}, false, kLater);
  EXPECT_EQ(moved.Where(1, "a", kLater), Names{});
  moved.Clear();
  EXPECT_EQ(moved.Where(1, "a", kNow), Names{});
}

TEST(MovedNames, Where_WithTooManyNothingIsKnownUntilTheirTimeIsOver) {
  MovedNames moved(2);
  for (const char* name : {"a", "b", "c"}) {
    moved.Add({1, name}, {2, name}, false, kLater);
  }
  EXPECT_EQ(moved.Where(1, "c", kNow), std::nullopt);
  EXPECT_EQ(moved.Where(1, "c", kLater), Names{});
  moved.Clear();
  EXPECT_EQ(moved.Where(1, "c", kNow), Names{});
}

}  // namespace
}  // namespace termfs::mount
