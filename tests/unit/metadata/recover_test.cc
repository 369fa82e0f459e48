// SPDX-License-Identifier: Apache-2.0
//
// What a crash can leave in the store, and that it is brought to its end.
#include "metadata/keys.h"
#include "metadata/records.h"
#include "tests/unit/metadata/test_volume.h"

namespace termfs::metadata {
namespace {

class RecoverTest : public VolumeTest {
 protected:
  InodeNumber File(const char* name) { return Make(kRootInode, name); }
  void Allocate(InodeNumber ino, uint64_t page, uint64_t count, uint64_t ahead) {
    EXPECT_TRUE(ns().AllocateExtents(ino, page, count, std::nullopt, Tick(), ahead).ok());
  }
  void SetSize(InodeNumber ino, uint64_t bytes) {
    EXPECT_TRUE(ns().SetSizeAndTimes(ino, bytes, SizeRule::kIfLarger, Tick(), Tick()).ok());
  }
  uint64_t Blocks(InodeNumber ino) { return Get(ino).blocks; }
  Namespace::Recovered Recover(bool orphans = true) {
    const auto done = ns().Recover(orphans);
    EXPECT_TRUE(done.ok()) << done.status().ToString();
    return *done;
  }
  void ExpectSound() { EXPECT_THAT(Problems(store()), testing::IsEmpty()); }
};

TEST_F(RecoverTest, Recover_GivesBackWhatWasAllocatedAhead) {
  const InodeNumber ino = File("f");
  Allocate(ino, 0, 30, 20);
  SetSize(ino, 9 * kPageSize + 1);
  ExpectSound();
  EXPECT_EQ(Recover().trimmed, 1u);
  EXPECT_EQ(Blocks(ino), 10u);
  EXPECT_EQ(ns().StatFs().pending_pages, 20u);
  EXPECT_EQ(Recover().trimmed, 0u);
  ExpectSound();
}

TEST_F(RecoverTest, WhatIsAheadIsNotInUse) {
  const InodeNumber ino = File("f");
  const auto in_use = [&] { return Get(ino).BlocksInUse(); };
  Allocate(ino, 0, 30, 20);
  EXPECT_EQ(in_use(), 0u) << "nothing is written yet";
  SetSize(ino, 9 * kPageSize + 1);
  EXPECT_EQ(in_use(), 10u);
  EXPECT_EQ(Blocks(ino), 30u) << "as the quota has it";
  SetSize(ino, 30 * kPageSize);
  EXPECT_EQ(in_use(), 30u);
  EXPECT_EQ(Get(ino).ahead_end, 0u);
  Allocate(ino, 30, 10, 9);
  SetSize(ino, 31 * kPageSize);
  EXPECT_EQ(in_use(), 31u);
  ASSERT_TRUE(ns().PunchExtents(ino, 31, 9, Tick()).ok());
  EXPECT_EQ(in_use(), 31u);
  EXPECT_EQ(Get(ino).ahead_end, 0u);
  Allocate(ino, 31, 10, 9);
  ExpectSound();
  EXPECT_EQ(Recover().trimmed, 1u);
  EXPECT_EQ(in_use(), 31u);
  EXPECT_EQ(Get(ino).ahead_end, 0u);
  Allocate(ino, 31, 10, 9);
  ASSERT_TRUE(ns().Truncate(ino, 5 * kPageSize, Tick()).ok());
  EXPECT_EQ(in_use(), 5u);
  EXPECT_EQ(Get(ino).ahead_end, 0u);
  ExpectSound();
}

TEST_F(RecoverTest, ACutIsOfOnePage) {
  const InodeNumber ino = File("f");
  Allocate(ino, 0, 4, 0);
  SetSize(ino, 4 * kPageSize);
  const auto truncate = [&](uint64_t size) { return ns().Truncate(ino, size, Tick()).status().code(); };
  const auto from = [&] { return Get(ino).cut.from; };
  EXPECT_EQ(truncate(3 * kPageSize), 0);
  EXPECT_EQ(from(), 0u);
  EXPECT_EQ(truncate(2 * kPageSize + 100), 0);
  EXPECT_EQ(from(), 2 * kPageSize + 100);
  const TailCut first = Get(ino).cut;
  EXPECT_EQ(truncate(3 * kPageSize), 0) << "grows";
  EXPECT_EQ(truncate(2 * kPageSize + 200), 0);
  EXPECT_EQ(from(), 2 * kPageSize + 100) << "from there on the SSD may still have what was cut off";
  EXPECT_NE(Get(ino).cut.id, first.id);
  ASSERT_TRUE(ns().ForgetCut(ino, first).ok());
  EXPECT_EQ(from(), 2 * kPageSize + 100) << "another one";
  EXPECT_EQ(truncate(4 * kPageSize), 0);
  EXPECT_EQ(truncate(3 * kPageSize + 1), EBUSY);
  EXPECT_EQ(truncate(kPageSize + 1), 0);
  EXPECT_EQ(from(), kPageSize + 1) << "the page of the other one is gone";
  ExpectSound();
  ASSERT_TRUE(ns().ForgetCut(ino, Get(ino).cut).ok());
  EXPECT_TRUE(ns().ListCuts(0, 10)->empty());
  ExpectSound();
  EXPECT_EQ(truncate(100), 0);
  EXPECT_EQ(truncate(0), 0);
  EXPECT_TRUE(ns().ListCuts(0, 10)->empty());
  ExpectSound();
  EXPECT_TRUE(ns().ForgetCut(4711, first).ok()) << "no such inode";
}

TEST_F(RecoverTest, SpaceAheadInAQuotaTree) {
  const InodeNumber dir = MakeDir(kRootInode, "d");
  ASSERT_TRUE(ns().SetQuota(dir, uint64_t{1} << 30, std::nullopt).ok());
  const InodeNumber ino = ns().Create(dir, "f", {}, {}, Tick())->ino;
  Allocate(ino, 0, 30, 20);
  SetSize(ino, 10 * kPageSize);
  EXPECT_EQ(Get(ino).BlocksInUse(), 10u);
  EXPECT_EQ((*ns().FindQuota(ino))->pages, 30u) << "the quota counts it";
  ExpectSound();
}

TEST_F(RecoverTest, Recover_KeepsWhatWasAllocatedOnPurpose) {
  const InodeNumber ino = File("f");
  Allocate(ino, 0, 30, 0);
  const InodeNumber other = File("g");
  Allocate(other, 0, 30, 20);
  ASSERT_TRUE(ns().ForgetAhead(other).ok());
  EXPECT_EQ(Recover().trimmed, 0u);
  EXPECT_EQ(Blocks(ino), 30u);
  EXPECT_EQ(Blocks(other), 30u);
}

TEST_F(RecoverTest, TrimAhead_TakesManySteps) {
  const InodeNumber ino = File("f");
  Allocate(ino, 0, 1, 0);
  SetSize(ino, 1);
  for (uint64_t page = 3; page < 2500; page += 2) {  // an extent each
    Allocate(ino, page, 1, 1);
  }
  EXPECT_TRUE(*ns().TrimAhead(ino));
  ExpectSound();
  EXPECT_EQ(Recover().trimmed, 1u);
  EXPECT_EQ(Blocks(ino), 1u);
}

TEST_F(RecoverTest, WithItsLastPageAFileLosesTheNoteOfSpaceAhead) {
  const InodeNumber truncated = File("f");
  Allocate(truncated, 0, 30, 20);
  ASSERT_TRUE(ns().Truncate(truncated, 0, Tick()).ok());
  EXPECT_TRUE(ns().ListAhead(0, 10)->empty());
  const InodeNumber punched = File("g");
  Allocate(punched, 0, 30, 20);
  ASSERT_TRUE(ns().PunchExtents(punched, 0, 29, Tick()).ok());
  EXPECT_EQ(ns().ListAhead(0, 10)->size(), 1u) << "it has a page";
  ASSERT_TRUE(ns().PunchExtents(punched, 0, 30, Tick()).ok());
  EXPECT_TRUE(ns().ListAhead(0, 10)->empty());
  ASSERT_TRUE(ns().Unlink(kRootInode, "f", kNotOpen, Tick()).ok());
  ASSERT_TRUE(ns().Unlink(kRootInode, "g", kNotOpen, Tick()).ok());
  ExpectSound();
}

TEST_F(RecoverTest, OfAVolumeFromBefore_MakesOneThatOlderProgramsRefuse) {
  Superblock before = ns().superblock();
  before.incompatible = 0;
  const InodeNumber ino = File("f");
  auto transaction = store().Begin();
  ASSERT_TRUE(transaction->Put(SuperblockKey(), EncodeSuperblock(before)).ok());
  ASSERT_TRUE(transaction->Put(AheadKey(ino), EncodeNumber(5)).ok());  // which these left
  ASSERT_TRUE(transaction->Commit().ok());
  Reopen();
  ExpectSound();
  EXPECT_EQ(Recover().trimmed, 1u);
  Reopen();
  EXPECT_EQ(ns().superblock().incompatible, kInodesInReceipts | kShortGroups | kCuts);
  ASSERT_TRUE(ns().Unlink(kRootInode, "f", kNotOpen, Tick()).ok());
  ExpectSound();
}

TEST_F(RecoverTest, Recover_ReleasesOrphansOnlyWhenAsked) {
  const InodeNumber ino = File("f");
  Allocate(ino, 0, 7, 3);
  ASSERT_TRUE(ns().Unlink(kRootInode, "f", kOpen, Tick()).ok());
  EXPECT_EQ(Recover(false).orphans, 0u);
  EXPECT_TRUE(ns().GetAttr(ino).ok());
  EXPECT_EQ(Recover().orphans, 1u);
  EXPECT_EQ(ns().GetAttr(ino).status().code(), ESTALE);
  EXPECT_TRUE(ns().ListAhead(0, 10)->empty());
  ExpectSound();
}

TEST_F(RecoverTest, ListFree_IsWhatNobodyHas) {
  const uint64_t all = ns().StatFs().free_pages;
  const InodeNumber ino = File("f");
  Allocate(ino, 0, 10, 0);
  Allocate(ino, 20, 1, 0);
  uint64_t free = 0;
  PageIndex from{0};
  for (auto runs = *ns().ListFree(from, 1); !runs.empty(); runs = *ns().ListFree(from, 1)) {
    ASSERT_EQ(runs.size(), 1u);
    ASSERT_GE(runs[0].first, from);
    free += runs[0].pages;
    from.value = runs[0].first.value + runs[0].pages;
    const auto extents = ns().GetExtents(ino, 0, 100, 10);
    for (const Extent& extent : *extents) {
      EXPECT_TRUE(extent.region_page.value + extent.pages <= runs[0].first.value || extent.region_page >= from);
    }
  }
  EXPECT_EQ(free, all - 11);
}

TEST_F(RecoverTest, Check_FindsSpaceAheadOfNoFile) {
  auto transaction = store().Begin();
  ASSERT_TRUE(transaction->Put(AheadKey(77), EncodeNumber(5)).ok());
  ASSERT_TRUE(transaction->Commit().ok());
  EXPECT_EQ(Problems(store()).size(), 1u);
  transaction = store().Begin();
  ASSERT_TRUE(transaction->Delete(AheadKey(77)).ok());
  ASSERT_TRUE(transaction->Commit().ok());
}

}  // namespace
}  // namespace termfs::metadata
