// SPDX-License-Identifier: Apache-2.0
#include "fs/client/known_names.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {

using client::KnownNames;
using std::chrono::seconds;

namespace {

constexpr uint64_t kKnown = 7;

BootTime In(seconds time) { return Clock::System().Now() + time; }

// Two mounts whose kernels cache, and a directory that the first has made.
struct TwoMounts {
  TwoMounts() {
    const auto made = one.fs->MakeDirectory(*one.lane, {0, 0}, kRootInode, "d", 0755);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    directory = made.ok() ? made->ino : 0;
  }
  // Whether the first mount asks the server for the name; it must find it or not.
  bool AsksFor(std::string_view name, bool found) {
    const uint64_t calls = one.Metric("fs_metadata_total");
    EXPECT_EQ(one.InodeOf(name, directory) != 0, found) << name;
    return one.Metric("fs_metadata_total") != calls;
  }

  MemoryVolume volume{uint64_t{16} << 20};
  SilentCache one_cache;
  SilentCache other_cache;
  Mount one{volume, &one_cache};
  Mount other{volume, &other_cache};
  uint64_t directory = 0;
};

}  // namespace

TEST(KnownNames, Lacks_WhatWasNotAddedSinceItWasMade) {
  KnownNames names;
  EXPECT_FALSE(names.Lacks(kKnown, "a")) << "nothing is known of it";
  names.Made(kKnown, In(seconds(60)));
  names.WillAdd(kKnown, "a");
  EXPECT_FALSE(names.Lacks(kKnown, "a"));
  EXPECT_TRUE(names.Lacks(kKnown, "b"));
  EXPECT_FALSE(names.Lacks(kKnown, "b")) << "the second time a kernel should get to keep it";
  EXPECT_FALSE(names.Lacks(kKnown + 1, "b"));
  names.Forget(kKnown);
  EXPECT_FALSE(names.Lacks(kKnown, "c"));
}

TEST(KnownNames, Grant_ThatHasEndedTellsNothingAndIsNotRenewed) {
  KnownNames names;
  names.Made(kKnown, In(seconds(0)));
  names.Renewed(kKnown, In(seconds(60)));
  EXPECT_FALSE(names.Lacks(kKnown, "a"));
  names.Made(kKnown, In(seconds(60)));
  names.Renewed(kKnown, In(seconds(0)));
  EXPECT_TRUE(names.Lacks(kKnown, "a")) << "an earlier end takes nothing away";
}

TEST(KnownNames, TooManyNames_ItIsForgotten) {
  KnownNames names;
  names.Made(kKnown, In(seconds(600)));
  names.Made(kKnown + 1, In(seconds(600)));
  for (int i = 0; i < (1 << 17); ++i) {
    names.WillAdd(kKnown, std::to_string(i));
  }
  EXPECT_FALSE(names.Lacks(kKnown, "0"));
  names.WillAdd(kKnown, "one more");
  EXPECT_FALSE(names.Lacks(kKnown, "a"));
  EXPECT_TRUE(names.Lacks(kKnown + 1, "a"));
  for (uint64_t number = 0; number < 5000; ++number) {
    names.Made(kKnown + 1 + number, In(seconds(600)));
  }
  names.WillAdd(kKnown + 5000, "a");
  EXPECT_TRUE(names.Lacks(kKnown + 5000, "b")) << "others make room";
}

TEST(KnownNames, NewDirectory_ItsMountNeedsNotAskWhatIsNotThere) {
  TwoMounts mounts;
  EXPECT_FALSE(mounts.AsksFor("a", false));
  mounts.one.Close(mounts.one.Create("a", O_RDWR | O_EXCL, mounts.directory));
  EXPECT_TRUE(mounts.AsksFor("a", true));
  EXPECT_FALSE(mounts.AsksFor("b", false));
  EXPECT_EQ(mounts.one.lane->keep(nullptr).entry, 0.0);
  EXPECT_TRUE(mounts.AsksFor("b", false));
  EXPECT_GT(mounts.one.lane->keep(nullptr).entry, 0.0) << "it is looked up again and again";
  EXPECT_TRUE(mounts.AsksFor(".", true));
  EXPECT_EQ(mounts.one.Metric("fs_known_absent_total"), 2u);
  const uint64_t calls = mounts.other.Metric("fs_metadata_total");
  EXPECT_EQ(mounts.other.InodeOf("b", mounts.directory), 0u);
  EXPECT_NE(mounts.other.Metric("fs_metadata_total"), calls) << "another mount has to";
}

TEST(KnownNames, EveryWayToMakeAName_IsNoted) {
  TwoMounts mounts;
  client::FileSystem& fs = *mounts.one.fs;
  client::Lane& lane = *mounts.one.lane;
  const uint64_t d = mounts.directory;
  mounts.one.Close(mounts.one.Create("file", O_RDWR, d));
  const uint64_t file = mounts.one.InodeOf("file", d);
  ASSERT_TRUE(fs.MakeDirectory(lane, {0, 0}, d, "directory", 0755).ok());
  ASSERT_TRUE(fs.MakeNode(lane, {0, 0}, d, "node", S_IFIFO | 0644, 0).ok());
  ASSERT_TRUE(fs.Symlink(lane, {0, 0}, d, "symlink", "file").ok());
  ASSERT_TRUE(fs.Link(lane, file, d, "link").ok());
  ASSERT_TRUE(fs.Link(lane, file, kRootInode, "outside").ok());
  ASSERT_TRUE(fs.Rename(lane, kRootInode, "outside", d, "renamed", RENAME_NOREPLACE).ok());
  mounts.one.Close(mounts.one.Create("elsewhere", O_RDWR));
  ASSERT_TRUE(fs.Rename(lane, d, "node", kRootInode, "elsewhere", RENAME_EXCHANGE).ok());
  const auto unnamed = fs.CreateUnnamed(lane, {0, 0}, d, 0644, O_RDWR);
  ASSERT_TRUE(unnamed.ok());
  ASSERT_TRUE(fs.Link(lane, unnamed->first.ino, d, "named").ok());
  mounts.one.Close(unnamed->second);
  for (const char* name : {"file", "directory", "node", "symlink", "link", "renamed", "named"}) {
    EXPECT_NE(mounts.one.InodeOf(name, d), 0u) << name;
  }
  EXPECT_FALSE(mounts.AsksFor("other", false)) << "all of it was this mount's own";
}

// It finds the directory before the one that makes it has heard that it is there.
TEST(KnownNames, WhatAnotherLaneMakes_IsFound) {
  TwoMounts mounts;
  client::FileSystem& fs = *mounts.one.fs;
  auto lane = fs.OpenLane();
  ASSERT_TRUE(lane.ok());
  constexpr int kDirectories = 2000;
  std::thread maker([&] {
    for (int i = 0; i < kDirectories; ++i) {
      const std::string name = "d" + std::to_string(i);
      auto found = fs.Lookup(**lane, mounts.directory, name);
      while (!found.ok()) {
        found = fs.Lookup(**lane, mounts.directory, name);
      }
      const auto made = fs.MakeDirectory(**lane, {0, 0}, found->ino, "x", 0755);
      EXPECT_TRUE(made.ok()) << made.status().ToString();
    }
  });
  std::vector<uint64_t> directories;
  for (int i = 0; i < kDirectories; ++i) {
    const auto made = fs.MakeDirectory(*mounts.one.lane, {0, 0}, mounts.directory, "d" + std::to_string(i), 0755);
    ASSERT_TRUE(made.ok());
    directories.push_back(made->ino);
  }
  maker.join();
  for (const uint64_t directory : directories) {
    EXPECT_NE(mounts.one.InodeOf("x", directory), 0u);
  }
}

TEST(KnownNames, WhatAnotherMountMakes_IsFound) {
  const auto make = [](Mount& mount, uint64_t directory, int way) {
    client::FileSystem& fs = *mount.fs;
    switch (way) {
      case 0:
        mount.Close(mount.Create("new", O_RDWR | O_EXCL, directory));
        return Status::Ok();
      case 1:
        return fs.MakeDirectory(*mount.lane, {0, 0}, directory, "new", 0755).status();
      case 2:
        mount.Close(mount.Create("f"));
        return fs.Rename(*mount.lane, kRootInode, "f", directory, "new", 0);
      default:
        mount.Close(mount.Create("f"));
        return fs.Link(*mount.lane, mount.InodeOf("f"), directory, "new").status();
    }
  };
  for (int way = 0; way < 4; ++way) {
    SCOPED_TRACE(way);
    TwoMounts mounts;
    EXPECT_FALSE(mounts.AsksFor("new", false));
    const Status made = make(mounts.other, mounts.directory, way);
    ASSERT_TRUE(made.ok()) << made.ToString();
    EXPECT_TRUE(mounts.AsksFor("new", true));
    EXPECT_TRUE(mounts.AsksFor("another", false)) << "its names are not known any more";
  }
}

}  // namespace termfs::fs
