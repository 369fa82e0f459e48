// SPDX-License-Identifier: Apache-2.0
#include "mount/remount.h"

#include <gtest/gtest.h>
#include <sys/mount.h>

#include "mount/mount_config.h"

namespace termfs::mount {

TEST(RemountOptions, WhatIsLeftOfThem) {
  EXPECT_EQ(RemountOptions("rw,nosuid"), std::nullopt);
  EXPECT_EQ(RemountOptions("rw,remounted,x-remount"), std::nullopt);
  EXPECT_EQ(RemountOptions("remount"), "");
  EXPECT_EQ(RemountOptions("ro,remount,user_id=0,group_id=0,nosuid,max_read=131072,threads=3"), "ro,nosuid,threads=3");
}

TEST(FlagsNamed, TheLastOneCounts) {
  EXPECT_EQ(FlagsNamed(""), 0U);
  EXPECT_EQ(FlagsNamed("rw,suid,threads=3"), 0U);
  EXPECT_EQ(FlagsNamed("ro,nosuid,nodev,noexec,nodiratime"),
            static_cast<unsigned long>(MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NODIRATIME));
  EXPECT_EQ(FlagsNamed("ro,noatime,rw,sync"), static_cast<unsigned long>(MS_NOATIME | MS_SYNCHRONOUS));
  EXPECT_EQ(FlagsNamed("noatime,strictatime,sync,async,nosymfollow,symfollow"), 0U);
}

TEST(NeedsNewMount, NamesWhatDiffers) {
  const auto differs = [](const char* now, const char* wanted) {
    MountConfig before;
    MountConfig after;
    EXPECT_TRUE(ApplyMountOptions(now, before).ok());
    EXPECT_TRUE(ApplyMountOptions(now, after).ok());
    EXPECT_TRUE(ApplyMountOptions(wanted, after).ok());
    return NeedsNewMount(before, after);
  };
  EXPECT_EQ(differs("threads=3,rw,acl", "ro,nosuid,noatime,sync,nosymfollow,threads=3"), "");
  EXPECT_EQ(differs("threads=3", "threads=4"), "threads");
  EXPECT_EQ(differs("", "noacl"), "acl");
  EXPECT_EQ(differs("bitmap=off", "bitmap=live"), "bitmap");
  EXPECT_EQ(differs("", "dirsync"), "dirsync");
  EXPECT_EQ(differs("dirsync", "ro,dirsync"), "");
}

}  // namespace termfs::mount
