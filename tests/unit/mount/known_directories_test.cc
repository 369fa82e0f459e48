// SPDX-License-Identifier: Apache-2.0
#include "mount/known_directories.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

namespace termfs::mount {
namespace {

constexpr fs::Attributes kDirectory{.ino = 7, .mode = S_IFDIR | 0755, .nlink = 3, .uid = 5, .size = 10, .ctime = 100};

TEST(KnownDirectories, Removed_HasNoLinksAndIsEmpty) {
  KnownDirectories known;
  EXPECT_FALSE(known.Removed(7));
  known.LookedUp(kDirectory);
  const auto removed = known.Removed(7);
  ASSERT_TRUE(removed);
  EXPECT_EQ(removed->mode, uint32_t{S_IFDIR | 0755});
  EXPECT_EQ(removed->uid, 5u);
  EXPECT_EQ(removed->nlink, 0u);
  EXPECT_EQ(removed->size, 0u);
}

TEST(KnownDirectories, Removed_HasWhatWasSeenLast) {
  KnownDirectories known;
  known.LookedUp(kDirectory);
  fs::Attributes changed = kDirectory;
  changed.mode = S_IFDIR | 0700;
  known.Seen(changed);
  EXPECT_EQ(known.Removed(7)->mode, uint32_t{S_IFDIR | 0700});
}

TEST(KnownDirectories, Seen_OfWhatWasNotLookedUp_IsNotKept) {
  KnownDirectories known;
  known.Seen(kDirectory);
  EXPECT_FALSE(known.Removed(7));
}

TEST(KnownDirectories, Forget_EndsItWithTheLastLookUp) {
  KnownDirectories known;
  known.LookedUp(kDirectory);
  known.LookedUp(kDirectory);
  known.LookedUp(kDirectory);
  known.Forget(8, 5);
  known.Forget(7, 2);
  EXPECT_TRUE(known.Removed(7));
  known.Forget(7, 1);
  EXPECT_FALSE(known.Removed(7));
}

TEST(KnownDirectories, SetRemoved_IsShownFromThenOn) {
  KnownDirectories known;
  fs::client::SetAttributes what;
  what.mode = 0700;
  what.mtime_now = true;
  EXPECT_FALSE(known.SetRemoved(7, what, 500));
  known.LookedUp(kDirectory);
  ASSERT_TRUE(known.SetRemoved(7, what, 500));
  const auto removed = known.Removed(7);
  EXPECT_EQ(removed->mode, uint32_t{S_IFDIR | 0700});
  EXPECT_EQ(removed->mtime, 500);
  EXPECT_EQ(removed->ctime, 500);
  EXPECT_EQ(removed->uid, 5u);
}

}  // namespace
}  // namespace termfs::mount
