// SPDX-License-Identifier: Apache-2.0
#include "mount/mounts_below.h"

#include <gtest/gtest.h>
#include <sys/sysmacros.h>

namespace termfs::mount {

TEST(MountsBelow, AreThoseWhoseParentHasTheDevice) {
  constexpr const char* kTable =
      "21 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
      "30 21 0:40 / /mnt\\040one rw,nosuid,nodev shared:5 - fuse.termfs /vol rw\n"
      "31 21 0:41 / /two rw - fuse.termfs /vol rw\n"
      "32 31 0:9 / /two/below rw - tmpfs tmpfs rw\n"
      "33 21 0:42 / /three rw - fuse.termfs /vol rw\n"
      "34 21 0:42 /part /bound rw - fuse.termfs /vol rw\n"
      "35 34 0:10 / /bound/below rw - tmpfs tmpfs rw\n";
  EXPECT_FALSE(AnyMountBelow(kTable, makedev(0, 40)));
  EXPECT_TRUE(AnyMountBelow(kTable, makedev(0, 41)));
  EXPECT_TRUE(AnyMountBelow(kTable, makedev(0, 42))) << "a part of it that is mounted elsewhere";
  EXPECT_FALSE(AnyMountBelow(kTable, makedev(0, 43)));
  EXPECT_TRUE(AnyMountBelow(kTable, makedev(254, 0)));
}

TEST(MountsBelow, DeviceOf_IsThatOfTheMountTable) {
  const Result<dev_t> device = DeviceOf("/proc");
  ASSERT_TRUE(device.ok());
  EXPECT_FALSE(AnyMountBelow(makedev(4095, 1)));
  EXPECT_NE(*device, makedev(4095, 1));
  EXPECT_EQ(DeviceOf("/proc/no such").status().code(), ENOENT);
}

}  // namespace termfs::mount
