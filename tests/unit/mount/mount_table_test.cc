// SPDX-License-Identifier: Apache-2.0
#include "mount/mount_table.h"

#include <gtest/gtest.h>
#include <sys/sysmacros.h>

#include <algorithm>

namespace termfs::mount {

TEST(MountTable, Parse_TellsNumberDevicePathAndType) {
  const std::vector<MountEntry> entries = ParseMountTable(
      "21 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
      "30 21 0:40 / /mnt\\040one\\134\\012x rw,nosuid shared:5 master:2 - fuse.termfs /vol rw,sync\n"
      "31 30 0:300000 /part /two\\04 rw - tmpfs none rw\n");
  ASSERT_EQ(entries.size(), 3U);
  EXPECT_EQ(entries[0].mount, (MountNumber{.number = 21, .device = makedev(254, 0)}));
  EXPECT_EQ(entries[0].path, "/");
  EXPECT_EQ(entries[0].type, "ext4");
  EXPECT_EQ(entries[1].mount, (MountNumber{.number = 30, .device = makedev(0, 40)}));
  EXPECT_EQ(entries[1].path, "/mnt one\\\nx");
  EXPECT_EQ(entries[1].type, "fuse.termfs");
  EXPECT_TRUE(entries[1].Has("nosuid"));
  EXPECT_TRUE(entries[1].Has("sync")) << "of the file system";
  EXPECT_FALSE(entries[1].Has("nodev"));
  EXPECT_FALSE(entries[1].Has("suid"));
  EXPECT_EQ(entries[2].mount, (MountNumber{.number = 31, .device = makedev(0, 300000)}));
  EXPECT_EQ(entries[2].parent, 30U);
  EXPECT_EQ(entries[2].path, "/two\\04");
  EXPECT_EQ(entries[2].type, "tmpfs");
}

TEST(MountTable, MountAt_IsTheLastOneThere) {
  const Result<MountNumber> proc = MountAt("/proc");
  ASSERT_TRUE(proc.ok());
  const Result<std::vector<MountEntry>> table = ReadMountTable();
  ASSERT_TRUE(table.ok());
  const auto last =
      std::find_if(table->rbegin(), table->rend(), [](const auto& entry) { return entry.path == "/proc"; });
  ASSERT_NE(last, table->rend());
  EXPECT_EQ(last->mount, *proc);
  EXPECT_EQ(MountAt("/proc/no such").status().code(), ENOENT);
}

}  // namespace termfs::mount
