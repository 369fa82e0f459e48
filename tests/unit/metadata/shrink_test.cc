// SPDX-License-Identifier: Apache-2.0
#include "metadata/allocator.h"
#include "tests/unit/metadata/test_volume.h"

namespace termfs::metadata {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kPages = 3 * kGroupPages;  // of a region that begins with two and a half groups more

class ShrinkTest : public VolumeTest {
 protected:
  ShrinkTest() : VolumeTest(SmallVolume(kPages)) {}

  // Moves what lies beyond the line, and frees where it was. How many pages were moved.
  uint64_t MoveAll() {
    uint64_t pages = 0;
    std::string from;
    do {
      const auto beyond = ns().ListBeyond(from, 3);
      EXPECT_TRUE(beyond.ok()) << beyond.status().ToString();
      for (const auto& [ino, extent] : beyond->extents) {
        const auto to = ns().Reserve(ino, extent.pages);
        EXPECT_TRUE(to.ok()) << to.status().ToString();
        const auto moved = ns().MoveExtent(ino, extent, *to);
        EXPECT_TRUE(moved.ok() && *moved);
        pages += extent.pages;
      }
      from = beyond->next;
    } while (!from.empty());
    CommitAllFree();
    return pages;
  }
  std::vector<Extent> ExtentsOf(InodeNumber ino) {
    const auto extents = ns().GetExtents(ino, 0, kPages, 100000);
    EXPECT_TRUE(extents.ok());
    return extents.ok() ? *extents : std::vector<Extent>{};
  }
  uint64_t Free() { return ns().StatFs().free_pages; }
};

TEST_F(ShrinkTest, Confine_GivesNothingOutBeyondTheLine) {
  constexpr uint64_t kLine = 1000;
  ASSERT_TRUE(ns().Confine(kLine).ok());
  EXPECT_EQ(Free(), kLine);
  EXPECT_EQ(ns().TakenBeyond(), 0u);
  const InodeNumber ino = Make(kRootInode, "f");
  EXPECT_EQ(Allocate(ino, 0, kLine + 1), ENOSPC);
  ASSERT_EQ(Allocate(ino, 0, kLine), 0);
  for (const Extent& extent : ExtentsOf(ino)) {
    EXPECT_LE(extent.region_page.value + extent.pages, kLine);
  }
  EXPECT_EQ(Free(), 0u);
  ns().EndConfinement();
  EXPECT_EQ(Free(), kPages - kLine);
  EXPECT_EQ(Allocate(ino, kLine, 20000), 0);
}

TEST_F(ShrinkTest, Confine_BelowWhatIsInUse_SaysHowMuchMustGo) {
  const InodeNumber ino = Make(kRootInode, "f");
  ASSERT_EQ(Allocate(ino, 0, 2000), 0);
  const Status refused = ns().Confine(1500);
  EXPECT_EQ(refused.code(), ENOSPC);
  EXPECT_THAT(refused.ToString(), ::testing::HasSubstr("2000 KiB of them"));
  EXPECT_EQ(Free(), kPages - 2000) << "as before";
  EXPECT_EQ(ns().Confine(kPages).code(), EINVAL);
  EXPECT_EQ(ns().Confine(0).code(), EINVAL);
  ASSERT_TRUE(ns().PunchExtents(ino, 100, 1900, Tick()).ok());
  EXPECT_TRUE(ns().Confine(1500).ok()) << "what is pending does not count";
  EXPECT_EQ(ns().Shrink(1500).code(), EBUSY) << "and is in the way until it is free";
  CommitAllFree();
  MoveAll();
  EXPECT_TRUE(ns().Shrink(1500).ok());
}

TEST_F(ShrinkTest, Move_KeepsFilesAndShrinks) {
  std::vector<InodeNumber> files;
  for (int i = 0; i < 16; ++i) {  // of all streams, so all over the region
    files.push_back(Make(kRootInode, "f" + std::to_string(i)));
    ASSERT_EQ(Allocate(files.back(), 3, 1000), 0);
    ASSERT_EQ(Allocate(files.back(), 5000, 7), 0);
  }
  constexpr uint64_t kLine = 20000;
  const auto before = Get(files[0]);
  ASSERT_TRUE(ns().Confine(kLine).ok());
  EXPECT_EQ(ns().Shrink(kLine).code(), EBUSY);
  const uint64_t beyond = ns().TakenBeyond();
  EXPECT_GT(beyond, 0u);
  EXPECT_EQ(MoveAll(), beyond);
  EXPECT_EQ(ns().TakenBeyond(), 0u);
  EXPECT_EQ(MoveAll(), 0u);
  EXPECT_EQ(Get(files[0]), before) << "nothing that a user sees";
  EXPECT_EQ(ns().Shrink(kLine - 1).code(), EINVAL);
  ASSERT_TRUE(ns().Shrink(kLine).ok());
  EXPECT_EQ(ns().superblock().capacity_pages, kLine);
  EXPECT_EQ(Free(), kLine - 16 * 1007);
  EXPECT_THAT(Problems(store()), IsEmpty());
  Reopen();
  EXPECT_EQ(ns().StatFs().total_pages, kLine);
  EXPECT_EQ(Free(), kLine - 16 * 1007);
  for (const InodeNumber ino : files) {
    uint64_t pages = 0;
    for (const Extent& extent : ExtentsOf(ino)) {
      EXPECT_LE(extent.region_page.value + extent.pages, kLine);
      EXPECT_TRUE((extent.file_page >= 3 && extent.file_page + extent.pages <= 1003) ||
                  (extent.file_page >= 5000 && extent.file_page + extent.pages <= 5007));
      pages += extent.pages;
    }
    EXPECT_EQ(pages, 1007u);
  }
  ASSERT_TRUE(ns().Grow(kPages).ok());
  const InodeNumber more = Make(kRootInode, "more");
  EXPECT_EQ(Allocate(more, 0, kMaxAllocation), 0);
  EXPECT_EQ(Free(), kPages - 16 * 1007 - kMaxAllocation);
}

TEST_F(ShrinkTest, MoveExtent_OfWhatIsThereNoMore_DoesNothing) {
  const InodeNumber ino = Make(kRootInode, "f");
  ASSERT_EQ(Allocate(ino, 0, 64), 0);
  const Extent extent = ExtentsOf(ino)[0];
  const auto to = ns().Reserve(ino, 64);
  ASSERT_TRUE(to.ok());
  ASSERT_TRUE(ns().PunchExtents(ino, 10, 5, Tick()).ok());
  auto moved = ns().MoveExtent(ino, extent, *to);
  EXPECT_TRUE(moved.ok() && !*moved) << "a hole in it";
  moved = ns().MoveExtent(ino + 1000, extent, *to);
  EXPECT_TRUE(moved.ok() && !*moved) << "no such file";
  ASSERT_EQ(Allocate(ino, 10, 5), 0);
  Extent half = ExtentsOf(ino)[0];
  half.pages = 10;
  const std::vector<RegionRange> part = {{to->at(0).server, to->at(0).first, 10}};
  EXPECT_EQ(ns().MoveExtent(ino, half, part).status().code(), EINVAL) << "not what was reserved";
  EXPECT_EQ(ns().StatFs().pending_pages, 64u + 5u);
  CommitAllFree();
  EXPECT_EQ(Free(), kPages - 64);
}

TEST_F(ShrinkTest, MoveExtent_InTheMiddle_LeavesTheRest) {
  const InodeNumber ino = Make(kRootInode, "f");
  ASSERT_EQ(Allocate(ino, 0, 64), 0);
  ASSERT_THAT(ExtentsOf(ino), SizeIs(1));
  const PageIndex start = ExtentsOf(ino)[0].region_page;
  const auto to = ns().Reserve(ino, 8);
  ASSERT_TRUE(to.ok());
  const auto moved = ns().MoveExtent(ino, {16, 8, 0, {start.value + 16}}, *to);
  ASSERT_TRUE(moved.ok() && *moved);
  const std::vector<Extent> now = ExtentsOf(ino);
  ASSERT_THAT(now, SizeIs(3));
  EXPECT_EQ(now[0], (Extent{0, 16, 0, start}));
  EXPECT_EQ(now[1], (Extent{16, 8, 0, to->at(0).first}));
  EXPECT_EQ(now[2], (Extent{24, 40, 0, {start.value + 24}}));
  EXPECT_EQ(ns().StatFs().pending_pages, 8u);
  CommitAllFree();
  EXPECT_EQ(Free(), kPages - 64);
}

TEST_F(ShrinkTest, Reserved_AfterACrash_IsPending) {
  ASSERT_TRUE(ns().Reserve(kRootInode, 100).ok());
  Reopen();
  EXPECT_EQ(ns().StatFs().pending_pages, 100u);
  EXPECT_THAT(Problems(store()), IsEmpty());
  CommitAllFree();
  EXPECT_EQ(Free(), kPages);
}

// Who had begun to take space when the line was drawn starts anew, and one who was done is found by Shrink.
TEST_F(ShrinkTest, Confine_WhileATransactionTakesSpace_DoesNotMissIt) {
  Allocator allocator(0, kPages);
  ASSERT_TRUE(allocator.Load(*store().Snapshot()).ok());
  const auto transaction = store().Begin();
  SpaceChange late(allocator, *transaction);
  ASSERT_TRUE(late.Take(2, 10, PageIndex{kPages - 10}).ok());
  allocator.Confine(1000);
  EXPECT_EQ(late.Flush().code(), EAGAIN);
  const auto again = store().Begin();
  SpaceChange below(allocator, *again);
  const auto taken = below.Take(2, 10, PageIndex{kPages - 10});
  ASSERT_TRUE(taken.ok());
  EXPECT_LT(taken->at(0).first.value, 1000u);
}

}  // namespace
}  // namespace termfs::metadata
