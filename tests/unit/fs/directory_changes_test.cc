// SPDX-License-Identifier: Apache-2.0
#include "fs/client/directory_changes.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <thread>

#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {

using client::DirectoryChanges;
using std::chrono::milliseconds;

namespace {

constexpr uint64_t kDirectory = 7;
constexpr uint64_t kSameSlot = kDirectory + 64 * 5;

BootTime Now() { return Clock::System().Now(); }

DirectoryChanges::Brought AttributesOf(uint64_t directory) {
  DirectoryChanges::Brought brought;
  brought.attributes.ino = directory;
  brought.granted_ms = 10'000;
  brought.sent = Now();
  return brought;
}

void ChangeIt(DirectoryChanges& changes, uint64_t directory) {
  DirectoryChanges::Change change(changes, directory);
  change.Brings(AttributesOf(directory));
}

}  // namespace

TEST(DirectoryChanges, Take_OnceAfterAChange) {
  DirectoryChanges changes;
  ChangeIt(changes, kDirectory);
  EXPECT_FALSE(changes.Take(kSameSlot).has_value());
  ASSERT_TRUE(changes.Take(kDirectory).has_value());
  EXPECT_FALSE(changes.Take(kDirectory).has_value());
}

TEST(DirectoryChanges, Take_NothingWhileOrAfterAnotherChange) {
  for (const uint64_t other : {kDirectory, kSameSlot}) {
    DirectoryChanges changes;
    ChangeIt(changes, kDirectory);
    {
      const DirectoryChanges::Change change(changes, other);
      EXPECT_FALSE(changes.Take(kDirectory).has_value());
    }
    EXPECT_FALSE(changes.Take(kDirectory).has_value());
  }
}

TEST(DirectoryChanges, Take_NothingOfChangesThatOverlapped) {
  DirectoryChanges changes;
  auto first = std::make_unique<DirectoryChanges::Change>(changes, kDirectory);
  auto second = std::make_unique<DirectoryChanges::Change>(changes, kDirectory);
  first->Brings(AttributesOf(kDirectory));
  second->Brings(AttributesOf(kDirectory));
  first.reset();
  EXPECT_FALSE(changes.Take(kDirectory).has_value());
  second.reset();
  EXPECT_FALSE(changes.Take(kDirectory).has_value());
}

TEST(DirectoryChanges, ForgetOthers_OnesThatAreUnderWayToo) {
  DirectoryChanges changes;
  ChangeIt(changes, kDirectory);
  ChangeIt(changes, kDirectory + 1);
  {
    DirectoryChanges::Change change(changes, kDirectory + 2);
    change.Brings(AttributesOf(kDirectory + 2));
    changes.ForgetOthers(kDirectory);
  }
  EXPECT_TRUE(changes.Take(kDirectory).has_value());
  EXPECT_FALSE(changes.Take(kDirectory + 1).has_value());
  EXPECT_FALSE(changes.Take(kDirectory + 2).has_value());
}

TEST(DirectoryChanges, Settled_NotSinceBeforeAChangeEnded) {
  DirectoryChanges changes;
  const BootTime before = Now();
  EXPECT_TRUE(changes.Settled(kDirectory, before));
  {
    const DirectoryChanges::Change change(changes, kDirectory);
    EXPECT_FALSE(changes.Settled(kDirectory, Now()));
  }
  EXPECT_FALSE(changes.Settled(kDirectory, before));
  std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(changes.Settled(kDirectory, Now()));
}

// --- Of a mount.

class ChangedDirectory : public testing::Test {
 protected:
  uint64_t MakeDirectory(const char* name, uint64_t parent) {
    const auto made = mount_.fs->MakeDirectory(*mount_.lane, {0, 0}, parent, name, 0755);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return made.ok() ? made->ino : 0;
  }
  // Whether the mount knows the directory's attributes without asking; in any case they are what another mount sees.
  bool Knows(uint64_t directory) {
    const uint64_t calls = mount_.Metric("fs_metadata_total");
    const Attributes known = mount_.Stat(directory);
    const bool asked = mount_.Metric("fs_metadata_total") != calls;
    const Attributes seen = other_.Stat(directory);
    EXPECT_EQ(known.nlink, seen.nlink);
    EXPECT_EQ(known.mode, seen.mode);
    EXPECT_EQ(known.size, seen.size);
    EXPECT_EQ(known.mtime, seen.mtime);
    EXPECT_EQ(known.ctime, seen.ctime);
    return !asked;
  }

  MemoryVolume volume_{uint64_t{16} << 20};
  SilentCache cache_;
  Mount mount_{volume_, &cache_};
  Mount other_{volume_};
  const uint64_t directory_ = MakeDirectory("d", kRootInode);
};

TEST_F(ChangedDirectory, IsKnownAfterEachChange) {
  client::FileSystem& fs = *mount_.fs;
  client::Lane& lane = *mount_.lane;
  const uint64_t d = directory_;
  mount_.Close(mount_.Create("f", O_RDWR, d));
  EXPECT_TRUE(Knows(d)) << "create";
  EXPECT_GT(lane.keep(nullptr).attributes, 0.0);
  EXPECT_FALSE(Knows(d)) << "once";
  MakeDirectory("sub", d);
  EXPECT_TRUE(Knows(d)) << "mkdir";
  ASSERT_TRUE(fs.MakeNode(lane, {0, 0}, d, "fifo", S_IFIFO | 0644, 0).ok());
  EXPECT_TRUE(Knows(d)) << "mknod";
  ASSERT_TRUE(fs.Symlink(lane, {0, 0}, d, "symlink", "f").ok());
  EXPECT_TRUE(Knows(d)) << "symlink";
  ASSERT_TRUE(fs.Link(lane, mount_.InodeOf("f", d), d, "link").ok());
  EXPECT_TRUE(Knows(d)) << "link";
  ASSERT_TRUE(fs.Unlink(lane, d, "link").ok());
  EXPECT_TRUE(Knows(d)) << "unlink";
  ASSERT_TRUE(fs.RemoveDirectory(lane, d, "sub").ok());
  EXPECT_TRUE(Knows(d)) << "rmdir";
}

TEST_F(ChangedDirectory, IsAskedForAfterAnotherChange) {
  client::FileSystem& fs = *mount_.fs;
  client::Lane& lane = *mount_.lane;
  const uint64_t d = directory_;
  const uint64_t sub = MakeDirectory("sub", d);
  int names = 0;
  const auto change = [&] { mount_.Close(mount_.Create("f" + std::to_string(names++), O_RDWR, d)); };

  change();
  ASSERT_TRUE(other_.fs->MakeDirectory(*other_.lane, {0, 0}, d, "theirs", 0755).ok());
  EXPECT_FALSE(Knows(d)) << "of another mount";
  change();
  client::SetAttributes mode;
  mode.mode = 0700;
  ASSERT_TRUE(fs.Set(lane, d, mode, nullptr).ok());
  EXPECT_FALSE(Knows(d)) << "chmod";
  change();
  ASSERT_TRUE(fs.SetXattr(lane, d, "user.a", {}, 0, false).ok());
  EXPECT_FALSE(Knows(d)) << "setxattr";
  change();
  ASSERT_TRUE(fs.RemoveXattr(lane, d, "user.a").ok());
  EXPECT_FALSE(Knows(d)) << "removexattr";
  change();
  ASSERT_TRUE(fs.Rename(lane, d, "sub", kRootInode, "moved", 0).ok());
  EXPECT_FALSE(Knows(d)) << "rename";

  const auto kept = fs.Open(lane, sub, O_PATH);
  ASSERT_TRUE(kept.ok()) << kept.status().ToString();
  mount_.Close(mount_.Create("f", O_RDWR, sub));
  ASSERT_TRUE(fs.Unlink(lane, sub, "f").ok());
  ASSERT_TRUE(fs.Rename(lane, kRootInode, "moved", d, "again", 0).ok());
  EXPECT_FALSE(Knows(sub)) << "it was renamed itself";
  mount_.Close(mount_.Create("f", O_RDWR, sub));
  ASSERT_TRUE(fs.Unlink(lane, sub, "f").ok());
  ASSERT_TRUE(fs.RemoveDirectory(lane, d, "again").ok());
  EXPECT_EQ(mount_.Stat(sub).nlink, 0U) << "it was removed itself";
  mount_.Close(*kept);
}

TEST(ChangedDirectoryLease, IsAskedForWhenTheTimeIsOver) {
  MemoryVolume volume(uint64_t{16} << 20, {.lease = milliseconds(20), .drift = milliseconds(20)});
  SilentCache cache;
  Mount mount(volume, &cache);
  mount.Close(mount.Create("f"));
  std::this_thread::sleep_for(milliseconds(25));
  const uint64_t calls = mount.Metric("fs_metadata_total");
  mount.Stat(kRootInode);
  EXPECT_EQ(mount.Metric("fs_metadata_total"), calls + 1);
}

}  // namespace termfs::fs
