// SPDX-License-Identifier: Apache-2.0
//
// Format, Open, and what a restart finds, on RocksDB too.
#include "metadata/keys.h"
#include "metadata/records.h"
#include "tests/fakes/crash_store.h"
#include "tests/unit/metadata/test_volume.h"

namespace termfs::metadata {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

void Store(KeyValueStore& store, const std::string& key, const std::string& value) {
  ASSERT_TRUE(Retry(store, [&](Transaction& t) { return t.Put(key, value); }).ok());
}

TEST(Namespace, Format_RefusesASecondTimeAndBadOptions) {
  const auto store = NewMemoryStore();
  EXPECT_EQ(Namespace::Format(*store, SmallVolume(0)).code(), EINVAL);
  FormatOptions options = SmallVolume();
  options.name_hash_bits = 56;
  EXPECT_EQ(Namespace::Format(*store, options).code(), EINVAL);
  EXPECT_EQ(Namespace::Open(*store).status().code(), ENOENT);
  EXPECT_EQ(Check(*store).status().code(), ENOENT);
  ASSERT_TRUE(Namespace::Format(*store, SmallVolume()).ok());
  EXPECT_EQ(Namespace::Format(*store, SmallVolume()).code(), EEXIST);
}

TEST(Namespace, Open_RefusesForeignVolumes) {
  const auto store = NewMemoryStore();
  ASSERT_TRUE(Namespace::Format(*store, SmallVolume()).ok());
  const Superblock good = (*Namespace::Open(*store))->superblock();

  Superblock foreign = good;
  foreign.format_version = 2;
  Store(*store, SuperblockKey(), EncodeSuperblock(foreign));
  const Status version = Namespace::Open(*store).status();
  EXPECT_EQ(version.code(), EPROTONOSUPPORT);
  EXPECT_THAT(std::string(version.message()), HasSubstr("version 2"));

  foreign = good;
  foreign.incompatible = 0x10;
  Store(*store, SuperblockKey(), EncodeSuperblock(foreign));
  EXPECT_THAT(std::string(Namespace::Open(*store).status().message()), HasSubstr("0x10"));

  foreign = good;
  foreign.compatible = 0x10;
  Store(*store, SuperblockKey(), EncodeSuperblock(foreign));
  EXPECT_TRUE(Namespace::Open(*store).ok());

  Store(*store, SuperblockKey(), "something else");
  EXPECT_EQ(Namespace::Open(*store).status().code(), EPROTONOSUPPORT);
  Store(*store, SuperblockKey(), EncodeSuperblock(good) + "x");
  EXPECT_EQ(Namespace::Open(*store).status().code(), EUCLEAN);
}

TEST(Namespace, RocksDb_ReopenFindsEverything) {
  const TemporaryDirectory directory;
  RocksDbOptions rocks;
  rocks.create_if_missing = true;
  InodeNumber ino = 0;
  std::vector<Extent> extents;
  {
    auto store = OpenRocksDb(directory.path(), rocks);
    ASSERT_TRUE(store.ok());
    ASSERT_TRUE(Namespace::Format(**store, SmallVolume()).ok());
    auto ns = std::move(Namespace::Open(**store)).value();
    ino = ns->Create(kRootInode, "f", {}, {}, Nanoseconds(5))->ino;
    extents = *ns->AllocateExtents(ino, 0, 100, std::nullopt, Nanoseconds(6));
    ASSERT_TRUE(ns->PunchExtents(ino, 50, 50, Nanoseconds(7)).ok());
    ASSERT_TRUE(ns->Sync().ok());
  }
  auto store = OpenRocksDb(directory.path());
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  auto ns = std::move(Namespace::Open(**store)).value();
  EXPECT_EQ(ns->Lookup(kRootInode, "f")->ino, ino);
  EXPECT_EQ(ns->GetExtents(ino, 0, 100, 10)->at(0).region_page, extents[0].region_page);
  const SpaceUse use = ns->StatFs();
  EXPECT_EQ(use.free_pages, 4096u - 100);
  EXPECT_EQ(use.pending_pages, 50u);
  EXPECT_EQ(use.inodes, 2u);
  // Numbers are not used again.
  EXPECT_GT(ns->Create(kRootInode, "g", {}, {}, Nanoseconds(8))->ino, ino);
  EXPECT_THAT(Problems(**store), IsEmpty());
}

// A mount that outlives the server still means the file that it knows by the number, though that was lost.
TEST(Namespace, NextInode_AfterPowerLoss_IsNotGivenOutAgain) {
  for (uint64_t seed = 0; seed < 8; seed++) {
    const TemporaryDirectory directory;
    CrashPoints never("", 0);
    SyncedLogs synced;
    InodeNumber last = 0;
    for (int start = 0; start < 3; start++) {
      auto rocks = OpenRocksDb(directory.path(), {.create_if_missing = true});
      ASSERT_TRUE(rocks.ok()) << rocks.status().ToString();
      auto store = std::make_unique<CrashStore>(std::move(*rocks), directory.path(), never, synced);
      if (start == 0) {
        ASSERT_TRUE(Namespace::Format(*store, SmallVolume()).ok());
      }
      auto ns = std::move(Namespace::Open(*store)).value();
      for (int i = 0; i < 5000; i++) {  // more than are reserved at a time
        const auto next = ns->NextInode();
        ASSERT_TRUE(next.ok()) << next.status().ToString();
        ASSERT_GT(*next, last) << "start " << start << ", seed " << seed;
        last = *next;
      }
      ns.reset();
      store.reset();
      Random random(seed);
      LosePower(directory.path(), synced, random);
    }
  }
}

}  // namespace
}  // namespace termfs::metadata
