// SPDX-License-Identifier: Apache-2.0
//
// Extents, truncation, free space.
#include <atomic>
#include <thread>

#include "tests/unit/metadata/test_volume.h"

namespace termfs::metadata {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ExtentsTest : public VolumeTest {
 protected:
  using VolumeTest::VolumeTest;

  std::vector<Extent> Allocated(InodeNumber ino, uint64_t page, uint64_t count,
                                std::optional<PageIndex> goal = std::nullopt) {
    auto extents = ns().AllocateExtents(ino, page, count, goal, Tick());
    EXPECT_TRUE(extents.ok()) << extents.status().ToString();
    return extents.ok() ? *extents : std::vector<Extent>();
  }
  std::vector<Extent> Extents(InodeNumber ino, uint64_t page = 0, uint64_t count = 1 << 20, size_t limit = 1 << 20) {
    auto extents = ns().GetExtents(ino, page, count, limit);
    EXPECT_TRUE(extents.ok()) << extents.status().ToString();
    return extents.ok() ? *extents : std::vector<Extent>();
  }
  uint64_t SumOfUse() {
    const SpaceUse use = ns().StatFs();
    return use.free_pages + use.pending_pages;
  }
  const InodeNumber file_ = Make(kRootInode, "f");
  const InodeNumber other_ = Make(kRootInode, "other");
};

TEST_F(ExtentsTest, Allocate_AppendsMergeIntoOneExtent) {
  const auto first = Allocated(file_, 0, 4);
  ASSERT_THAT(first, SizeIs(1));
  EXPECT_TRUE(first[0].fresh);
  EXPECT_EQ(first[0].pages, 4u);
  Allocated(file_, 4, 4);
  const auto all = Extents(file_);
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_EQ(all[0].pages, 8u);
  EXPECT_EQ(all[0].region_page, first[0].region_page);
  EXPECT_EQ(Get(file_).blocks, 8u);
  EXPECT_EQ(ns().StatFs().free_pages, 4096u - 8);
}

TEST_F(ExtentsTest, Allocate_FillsOnlyHolesAndSaysWhich) {
  Allocated(file_, 2, 2, PageIndex{100});
  Allocated(file_, 6, 2, PageIndex{200});
  const auto range = Allocated(file_, 0, 10, PageIndex{300});
  uint64_t next = 0;
  for (const Extent& extent : range) {
    EXPECT_EQ(extent.file_page, next);
    next += extent.pages;
    EXPECT_EQ(extent.fresh, extent.file_page != 2 && extent.file_page != 6);
  }
  EXPECT_EQ(next, 10u);
  EXPECT_EQ(Get(file_).blocks, 10u);
  EXPECT_EQ(Extents(file_, 2, 1)[0].region_page, PageIndex{100});
  const auto again = Allocated(file_, 0, 10);
  for (const Extent& extent : again) {
    EXPECT_FALSE(extent.fresh);
  }
}

TEST_F(ExtentsTest, Allocate_MergesOverAFilledHole) {
  Allocated(file_, 0, 2, PageIndex{100});
  Allocated(file_, 3, 2, PageIndex{103});
  EXPECT_THAT(Extents(file_), SizeIs(2));
  Allocated(file_, 2, 1);
  ASSERT_THAT(Extents(file_), SizeIs(1));
  EXPECT_EQ(Extents(file_)[0], (Extent{0, 5, 0, {100}, false}));
}

TEST_F(ExtentsTest, GetExtents_CutsToTheRangeAndLimits) {
  Allocated(file_, 0, 4, PageIndex{100});
  Allocated(file_, 8, 4, PageIndex{200});
  EXPECT_THAT(Extents(file_, 1, 8), ElementsAre(Extent{1, 3, 0, {101}, false}, Extent{8, 1, 0, {200}, false}));
  EXPECT_THAT(Extents(file_, 1, 8, 1), ElementsAre(Extent{1, 3, 0, {101}, false}));
  EXPECT_THAT(Extents(file_, 4, 4), IsEmpty());
  EXPECT_THAT(Extents(file_, 4, 8, 1), ElementsAre(Extent{8, 4, 0, {200}, false}));
}

TEST_F(ExtentsTest, Allocate_Errors) {
  const auto code = [&](InodeNumber ino, uint64_t page, uint64_t count) { return Allocate(ino, page, count); };
  EXPECT_EQ(code(file_, 0, 0), EINVAL);
  EXPECT_EQ(code(file_, 0, kMaxAllocation + 1), EINVAL);
  EXPECT_EQ(code(file_, uint64_t{1} << 48, 1), EFBIG);
  EXPECT_EQ(code(file_, ~uint64_t{0}, 2), EFBIG);
  EXPECT_EQ(code(kRootInode, 0, 1), EINVAL);
  EXPECT_EQ(code(4711, 0, 1), ESTALE);
}

TEST_F(ExtentsTest, Allocate_NoSpaceLeavesNothing) {
  ASSERT_EQ(Allocate(other_, 0, 4000), 0);
  EXPECT_EQ(Allocate(file_, 0, 97), ENOSPC);
  EXPECT_EQ(Get(file_).blocks, 0u);
  EXPECT_THAT(Problems(store()), IsEmpty());
  EXPECT_EQ(Allocate(file_, 0, 96), 0);
  EXPECT_EQ(ns().StatFs().free_pages, 0u);
  EXPECT_EQ(Allocate(file_, 96, 1), ENOSPC);
}

TEST_F(ExtentsTest, Truncate_FreesWholePagesIntoPendingUntilCommitted) {
  ASSERT_EQ(Allocate(file_, 0, 4096), 0);
  ASSERT_TRUE(ns().SetSizeAndTimes(file_, 4096 * kPageSize, SizeRule::kIfLarger, Tick(), Tick()).ok());
  const auto truncated = ns().Truncate(file_, 10 * kPageSize + 1, Nanoseconds(4444));
  ASSERT_TRUE(truncated.ok());
  EXPECT_FALSE(truncated->more);
  EXPECT_EQ(truncated->attributes.size, 10 * kPageSize + 1);
  EXPECT_EQ(truncated->attributes.mtime, Nanoseconds(4444));
  EXPECT_EQ(Get(file_).blocks, 11u);
  EXPECT_EQ(ns().StatFs().pending_pages, 4085u);
  EXPECT_EQ(ns().StatFs().free_pages, 0u);
  EXPECT_EQ(Allocate(other_, 0, 1), ENOSPC);
  const auto pending = *ns().ListPendingFree({}, 10);
  ASSERT_THAT(pending, SizeIs(1));
  EXPECT_EQ(ns().CommitFree(std::vector<RegionRange>{{0, pending[0].first, 5}}).code(), EINVAL);
  ASSERT_TRUE(ns().CommitFree(pending).ok());
  EXPECT_EQ(ns().CommitFree(pending).code(), EINVAL);
  EXPECT_EQ(ns().StatFs().free_pages, 4085u);
  EXPECT_EQ(Allocate(other_, 0, 4085), 0);
}

TEST_F(ExtentsTest, Truncate_UpKeepsSpaceAndDownChecksKind) {
  ASSERT_EQ(Allocate(file_, 0, 8), 0);
  ASSERT_TRUE(ns().Truncate(file_, 100 * kPageSize, Tick()).ok());
  EXPECT_EQ(Get(file_).blocks, 8u);
  EXPECT_EQ(Get(file_).size, 100 * kPageSize);
  EXPECT_EQ(ns().Truncate(kRootInode, 0, Tick()).status().code(), EISDIR);
  EXPECT_EQ(ns().Truncate(file_, kMaxFileSize + 1, Tick()).status().code(), EFBIG);
}

TEST_F(ExtentsTest, SetSizeAndTimes_GrowsOnly) {
  EXPECT_EQ(ns().SetSizeAndTimes(file_, 100, SizeRule::kIfLarger, Nanoseconds(5001), Nanoseconds(5002))->size, 100u);
  EXPECT_EQ(ns().SetSizeAndTimes(file_, 50, SizeRule::kIfLarger, Nanoseconds(5003), Nanoseconds(5004))->size, 100u);
  EXPECT_EQ(Get(file_).mtime, Nanoseconds(5003));
  EXPECT_EQ(Get(file_).ctime, Nanoseconds(5004));
  EXPECT_EQ(ns().SetSizeAndTimes(file_, 50, SizeRule::kExact, Tick(), Tick()).status().code(), EINVAL);
  EXPECT_EQ(ns().SetSizeAndTimes(file_, 150, SizeRule::kExact, Tick(), Tick())->size, 150u);
}

TEST_F(ExtentsTest, Punch_SplitsAnExtent) {
  Allocated(file_, 0, 10, PageIndex{100});
  EXPECT_FALSE(*ns().PunchExtents(file_, 3, 4, Tick()));
  EXPECT_THAT(Extents(file_), ElementsAre(Extent{0, 3, 0, {100}, false}, Extent{7, 3, 0, {107}, false}));
  EXPECT_THAT(*ns().ListPendingFree({}, 10), ElementsAre(RegionRange{0, {103}, 4}));
  EXPECT_THAT(*ns().ListPendingFree({103}, 10), SizeIs(1));
  EXPECT_THAT(*ns().ListPendingFree({104}, 10), IsEmpty());
  EXPECT_FALSE(*ns().PunchExtents(file_, 0, ~uint64_t{0}, Tick()));
  EXPECT_THAT(Extents(file_), IsEmpty());
  EXPECT_EQ(ns().PunchExtents(kRootInode, 0, 1, Tick()).status().code(), EINVAL);
}

// A file of many extents: every other page.
class FragmentedTest : public ExtentsTest {
 protected:
  static constexpr uint64_t kExtents = 1500;
  FragmentedTest() {
    for (uint64_t i = 0; i < kExtents; ++i) {
      EXPECT_EQ(Allocate(file_, 2 * i, 1), 0);
    }
    EXPECT_TRUE(ns().SetSizeAndTimes(file_, 2 * kExtents * kPageSize, SizeRule::kIfLarger, Tick(), Tick()).ok());
  }
};

TEST_F(FragmentedTest, Truncate_GoesOnInStepsAfterARestart) {
  const auto truncated = ns().Truncate(file_, 0, Tick());
  ASSERT_TRUE(truncated.ok());
  EXPECT_TRUE(truncated->more);
  EXPECT_EQ(Get(file_).size, 0u);
  EXPECT_THAT(Extents(file_), IsEmpty());
  EXPECT_THAT(*ns().ListTruncations(0, 10), ElementsAre(file_));
  EXPECT_THAT(Problems(store()), IsEmpty());
  Reopen();
  int steps = 0;
  while (*ns().TruncateStep(file_)) {
    ++steps;
    EXPECT_THAT(Problems(store()), IsEmpty());
  }
  EXPECT_GE(steps, 1);
  EXPECT_EQ(Get(file_).blocks, 0u);
  EXPECT_THAT(*ns().ListTruncations(0, 10), IsEmpty());
  EXPECT_EQ(SumOfUse(), 4096u);
  EXPECT_FALSE(*ns().TruncateStep(4711));
}

TEST_F(FragmentedTest, Truncate_UnfinishedNeverShowsOldPagesAgain) {
  ASSERT_TRUE(ns().Truncate(file_, 0, Tick())->more);
  ASSERT_TRUE(ns().Truncate(file_, 2 * kExtents * kPageSize, Tick()).ok());
  EXPECT_THAT(Extents(file_), IsEmpty());
  const auto range = Allocated(file_, 2 * kExtents - 10, 10);
  for (const Extent& extent : range) {
    EXPECT_TRUE(extent.fresh);
  }
  EXPECT_EQ(Get(file_).blocks, 10u);
}

TEST_F(FragmentedTest, Unlink_FreesInStepsAfterARestart) {
  ASSERT_TRUE(ns().Truncate(file_, 2 * 1200 * kPageSize, Tick()).ok());
  const auto removed = ns().Unlink(kRootInode, "f", kNotOpen, Tick());
  ASSERT_TRUE(removed.ok());
  EXPECT_TRUE(removed->orphaned);
  EXPECT_THAT(Problems(store()), IsEmpty());
  Reopen();
  EXPECT_TRUE(ns().ReleaseOrphan(file_).ok());
  EXPECT_EQ(SumOfUse(), 4096u);
  CommitAllFree();
  EXPECT_EQ(ns().StatFs().free_pages, 4096u);
}

TEST_F(FragmentedTest, Unlink_DuringATruncationFreesTheFrontToo) {
  ASSERT_TRUE(ns().Truncate(file_, 2 * 100 * kPageSize, Tick())->more);
  ASSERT_TRUE(ns().Unlink(kRootInode, "f", kOpen, Tick()).ok());
  EXPECT_TRUE(ns().ReleaseOrphan(file_).ok());
  EXPECT_EQ(SumOfUse(), 4096u);
  EXPECT_THAT(*ns().ListTruncations(0, 10), IsEmpty());
}

TEST_F(FragmentedTest, ReleaseOrphan_WithManyAttributes_LeavesNoKeyBehind) {
  for (int i = 0; i < 70; ++i) {  // more than a step takes
    ASSERT_TRUE(ns().SetXattr(file_, "user." + std::to_string(i), "", XattrMode::kEither, Tick()).ok());
  }
  ASSERT_TRUE(ns().Truncate(file_, 0, Tick())->more);
  ASSERT_TRUE(ns().Unlink(kRootInode, "f", kNotOpen, Tick())->orphaned);
  ASSERT_TRUE(ns().ReleaseOrphan(file_).ok());
  EXPECT_THAT(*ns().ListTruncations(0, 10), IsEmpty());
}

TEST_F(FragmentedTest, Punch_GoesOnInSteps) {
  int calls = 1;
  while (*ns().PunchExtents(file_, 0, 2 * kExtents, Tick())) {
    ++calls;
  }
  EXPECT_GE(calls, 3);
  EXPECT_EQ(Get(file_).blocks, 0u);
}

class BigVolumeTest : public ExtentsTest {
 protected:
  BigVolumeTest() : ExtentsTest(SmallVolume(3 * 32768 + 1000)) {}
};

TEST_F(BigVolumeTest, Allocate_SpansGroupsAndUsesTheShortLastOne) {
  uint64_t page = 0;
  for (; Allocate(file_, page, kMaxAllocation) == 0; page += kMaxAllocation) {
  }
  EXPECT_EQ(page, 3 * kMaxAllocation);
  EXPECT_EQ(Allocate(file_, page, 1000), 0);
  EXPECT_EQ(ns().StatFs().free_pages, 0u);
  ASSERT_TRUE(ns().Unlink(kRootInode, "f", kNotOpen, Tick()).ok());
  CommitAllFree();
  EXPECT_EQ(ns().StatFs().free_pages, 3 * 32768u + 1000);
}

TEST_F(BigVolumeTest, Grow_AddsFreePagesAlsoAfterReopen) {
  for (uint64_t page = 0; Allocate(file_, page, 1000) == 0; page += 1000) {
  }
  const uint64_t free = ns().StatFs().free_pages;
  EXPECT_EQ(ns().Grow(100).code(), EINVAL);
  ASSERT_TRUE(ns().Grow(5 * 32768).ok());
  EXPECT_EQ(ns().StatFs().free_pages, free + 2 * 32768 - 1000);
  EXPECT_EQ(ns().superblock().capacity_pages, 5 * 32768u);
  EXPECT_EQ(Allocate(other_, 0, 32768), 0);
  Reopen();
  EXPECT_EQ(ns().StatFs().free_pages, free + 32768 - 1000);
  EXPECT_EQ(Allocate(other_, 32768, 30000), 0);
}

TEST_F(BigVolumeTest, Threads_NeverShareAPage) {
  // Check, after the test, finds any page with two owners; the sums must be exact too.
  constexpr int kThreads = 4;
  std::vector<InodeNumber> files;
  for (int i = 0; i < kThreads; ++i) {
    files.push_back(Make(kRootInode, "t" + std::to_string(i)));
  }
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (const InodeNumber ino : files) {
    threads.emplace_back([this, ino, &failures] {
      for (uint64_t i = 0; i < 300; ++i) {
        bool good = ns().AllocateExtents(ino, i * 3, 2, std::nullopt, Nanoseconds(i)).ok();
        if (i % 10 == 9) {
          good = good && ns().PunchExtents(ino, i * 3 - 20, 10, Nanoseconds(i)).ok();
        }
        failures += good ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(failures, 0);
  uint64_t used = 0;
  for (const InodeNumber ino : files) {
    used += Get(ino).blocks;
  }
  EXPECT_EQ(SumOfUse() + used, 3 * 32768u + 1000);
}

}  // namespace
}  // namespace termfs::metadata
