// SPDX-License-Identifier: Apache-2.0
//
// The server's state of an inode, and the client's cache of it: who may rely on which map.
#include "fs/server/inode.h"

#include <gtest/gtest.h>

#include "fs/client/inode_cache.h"
#include "fs/server/inode_table.h"

namespace termfs::fs {

namespace {

using server::Inode;

class InodeTest : public testing::Test {
 protected:
  InodeTest() {
    MutexLock lock(inode.mutex);
    inode.Load({.size = 10 * kPageSize});
    inode.extents.Set({0, 4, 100});
    inode.extents.Set({4, 6, kHole});
    inode.extents.Set({10, 50, 200});  // ahead of the size
    inode.opens[1].count = 1;
    inode.opens[2].count = 1;
  }
  Inode inode{7};
  std::atomic<uint64_t> counter{0};
};

}  // namespace

// Also where the clock was set back. Only an mtime that lay ahead goes back.
TEST_F(InodeTest, Touch_MovesBothTimes) {
  MutexLock lock(inode.mutex);
  inode.Touch(Nanoseconds(200));
  inode.Touch(Nanoseconds(100));
  EXPECT_EQ(inode.mtime, Nanoseconds(201));
  EXPECT_EQ(inode.ctime, Nanoseconds(201));
  EXPECT_TRUE(inode.times_dirty);
  inode.SetTimes({.mtime = Nanoseconds(900), .ctime = Nanoseconds(150)});  // as utimensat wants it
  EXPECT_EQ(inode.mtime, Nanoseconds(900));
  EXPECT_EQ(inode.ctime, Nanoseconds(201));
  EXPECT_FALSE(inode.times_dirty);
  inode.Touch(Nanoseconds(300));
  EXPECT_EQ(inode.mtime, Nanoseconds(300));
  EXPECT_EQ(inode.ctime, Nanoseconds(300));
}

TEST(AccessTimeIsDue, AfterAChangeAndOnceADay) {
  constexpr Nanoseconds kDay = std::chrono::hours(24);
  constexpr Nanoseconds kThen{1000};
  const auto due = [](Nanoseconds access, Nanoseconds modification, Nanoseconds change, Nanoseconds now) {
    return server::AccessTimeIsDue({.access = access, .modification = modification, .change = change}, now);
  };
  const Nanoseconds before = kThen - Nanoseconds(1);
  EXPECT_FALSE(due(kThen, before, before, kThen + kDay - Nanoseconds(1)));
  EXPECT_TRUE(due(kThen, before, before, kThen + kDay));
  EXPECT_TRUE(due(kThen, kThen, before, kThen));
  EXPECT_TRUE(due(kThen, before, kThen, kThen));
  EXPECT_FALSE(due(kThen + 2 * kDay, before, before, kThen)) << "in the future, as it was set";
}

TEST_F(InodeTest, Withhold_VoidsWhatWasGranted) {
  MutexLock lock(inode.mutex);
  const uint64_t granted = inode.Grant(1, 0, counter).version;
  const Map none = inode.Withhold(counter);
  EXPECT_EQ(none.version, 0u);
  EXPECT_GE(none.base, granted);
  EXPECT_TRUE(none.segments.empty());
  EXPECT_TRUE(inode.grants.contains(1)) << "it may be reading by it";
  EXPECT_GT(inode.Grant(1, 0, counter).version, none.base);
}

TEST_F(InodeTest, Grant_EndsAtTheSize) {
  MutexLock lock(inode.mutex);
  const Map map = inode.Grant(1, 0, counter);
  EXPECT_GT(map.version, 0u);
  EXPECT_EQ(map.size, 10 * kPageSize);
  EXPECT_EQ(map.segments, (std::vector<Segment>{{0, 4, 100}, {4, 6, kHole}}));
}

TEST_F(InodeTest, Grant_NotWhileFrozenNorToStrangers) {
  MutexLock lock(inode.mutex);
  EXPECT_EQ(inode.Grant(3, 0, counter).version, 0u);
  inode.frozen = true;
  inode.version = 7;
  const Map none = inode.Grant(1, 0, counter);
  EXPECT_EQ(none.version, 0u);
  EXPECT_EQ(none.base, 7u) << "who has changed the file gives up what it knew of it";
  EXPECT_TRUE(inode.grants.empty());
}

TEST_F(InodeTest, Grant_NewOneHasNewVersion) {
  MutexLock lock(inode.mutex);
  const uint64_t first = inode.Grant(1, 0, counter).version;
  EXPECT_EQ(inode.Grant(1, 0, counter).version, first) << "still the same grant";
  inode.Drop(1, first - 1);
  EXPECT_EQ(inode.Grant(1, 0, counter).version, first) << "what was dropped was an older one";
  inode.Drop(1, first);
  EXPECT_GT(inode.Grant(1, 0, counter).version, first);
}

TEST_F(InodeTest, CloseAll_EndsGrantsAndOpens) {
  MutexLock lock(inode.mutex);
  inode.Grant(1, 0, counter);
  EXPECT_FALSE(inode.CloseAll(1));
  EXPECT_FALSE(inode.CloseAll(1)) << "it had none any more";
  EXPECT_TRUE(inode.CloseAll(2));
  EXPECT_TRUE(inode.grants.empty());
}

TEST_F(InodeTest, Remove_RaisesFrees) {
  MutexLock lock(inode.mutex);
  const uint64_t frees = inode.frees;
  inode.Remove(2, 3);
  EXPECT_GT(inode.frees, frees);
  EXPECT_EQ(inode.extents.Cut(0, 4), (std::vector<Segment>{{0, 2, 100}, {2, 1, kHole}, {3, 1, 103}}));
}

TEST_F(InodeTest, Touch_NeverLeavesTheSameChangeTime) {
  MutexLock lock(inode.mutex);
  inode.Touch(Nanoseconds(100));
  inode.Touch(Nanoseconds(100));
  EXPECT_EQ(inode.ctime, Nanoseconds(101)) << "the clock stood still";
  inode.Touch(Nanoseconds(50));
  EXPECT_EQ(inode.ctime, Nanoseconds(102)) << "and went back";
}

TEST_F(InodeTest, Merge_PrefersWhatRunsAhead) {
  MutexLock lock(inode.mutex);
  metadata::Attributes stored{.size = 5, .mtime = Nanoseconds(1), .ctime = Nanoseconds(50)};
  inode.mtime = Nanoseconds(7);
  inode.Merge(stored);
  EXPECT_EQ(stored.size, 10 * kPageSize);
  EXPECT_EQ(stored.mtime, Nanoseconds(7)) << "the store was asked before it was told";
  inode.Touch(Nanoseconds(20));
  inode.Merge(stored);
  EXPECT_EQ(stored.mtime, Nanoseconds(20));
  EXPECT_EQ(stored.ctime, Nanoseconds(50)) << "ctime never goes back";
}

TEST(InodeTable, Inode_StaysWhileNeeded) {
  server::InodeTable table;
  { auto ref = table.Get(5); }
  EXPECT_EQ(table.size(), 0u);
  {
    auto ref = table.Get(5);
    MutexLock lock(ref->mutex);
    ref->opens[1].count = 1;
  }
  EXPECT_EQ(table.size(), 1u);
  {
    auto ref = table.Find(5);
    ASSERT_TRUE(ref);
    MutexLock lock(ref->mutex);
    ref->opens.clear();
    ref->times_dirty = true;
  }
  EXPECT_EQ(table.size(), 1u) << "the store has not got its times yet";
  {
    auto ref = table.Find(5);
    MutexLock lock(ref->mutex);
    ref->times_dirty = false;
  }
  EXPECT_EQ(table.size(), 0u);
  EXPECT_FALSE(table.Find(5));
}

namespace client {

namespace {
Map MapOf(uint64_t version, uint64_t base, uint64_t pages, std::vector<Segment> segments) {
  return {.version = version, .base = base, .size = pages * kPageSize, .segments = std::move(segments)};
}
}  // namespace

TEST(InodeCache, Look_NeedsAllOfTheRange) {
  InodeCache cache;
  Plan plan;
  EXPECT_FALSE(cache.Look(0, 10, plan));
  cache.Install(MapOf(1, 0, 8, {{0, 2, 50}, {2, 2, kHole}}), 0);
  ASSERT_TRUE(cache.Look(kPageSize + 5, 2 * kPageSize, plan));
  EXPECT_EQ(plan.count, 2u);
  EXPECT_EQ(plan.segments[0], (Segment{1, 1, 51}));
  EXPECT_EQ(plan.segments[1], (Segment{2, 2, kHole}));
  EXPECT_FALSE(cache.Look(3 * kPageSize, 2 * kPageSize, plan)) << "page 4 is unknown";
  ASSERT_TRUE(cache.Look(8 * kPageSize, 10, plan));
  EXPECT_EQ(plan.length, 0u) << "the end of the file";
}

TEST(InodeCache, Revoke_VoidsReadersAndLateReplies) {
  InodeCache cache;
  Plan plan;
  cache.Install(MapOf(5, 0, 8, {{0, 8, 50}}), 0);
  ASSERT_TRUE(cache.Look(0, 10, plan));
  EXPECT_TRUE(cache.StillValid(plan.epoch));
  cache.Revoke(6);
  EXPECT_FALSE(cache.StillValid(plan.epoch));
  EXPECT_FALSE(cache.Look(0, 10, plan));
  cache.Install(MapOf(6, 0, 8, {{0, 8, 50}}), 0);
  EXPECT_FALSE(cache.Look(0, 10, plan)) << "its revocation overtook it";
  cache.Install(MapOf(7, 0, 8, {{0, 8, 50}}), 0);
  EXPECT_TRUE(cache.Look(0, 10, plan));
}

TEST(InodeCache, Install_MergesOrReplacesByBase) {
  InodeCache cache;
  Plan plan;
  cache.Install(MapOf(5, 3, 8, {{0, 4, 50}}), 0);
  ASSERT_TRUE(cache.Look(0, 10, plan));
  const uint64_t epoch = plan.epoch;
  cache.Install(MapOf(6, 3, 20, {{8, 12, 80}}), 0);  // growth
  ASSERT_TRUE(cache.Look(0, 10, plan));
  ASSERT_TRUE(cache.Look(10 * kPageSize, 10, plan));
  EXPECT_TRUE(cache.StillValid(epoch)) << "growth disturbs no reader";
  cache.Install(MapOf(5, 3, 8, {{4, 4, 60}}), 0);  // a late reply
  EXPECT_FALSE(cache.Look(4 * kPageSize, 10, plan));
  cache.Install(MapOf(9, 9, 20, {{8, 12, 80}}), 0);  // anything may have changed
  EXPECT_FALSE(cache.Look(0, 10, plan));
  EXPECT_TRUE(cache.Look(10 * kPageSize, 10, plan));
}

TEST(InodeCache, Drop_RefusesWhatWasDropped) {
  InodeCache cache;
  Plan plan;
  EXPECT_EQ(cache.Drop(), 0u);
  cache.Install(MapOf(5, 0, 8, {{0, 8, 50}}), 0);
  EXPECT_EQ(cache.Drop(), 5u);
  cache.Install(MapOf(5, 0, 8, {{0, 8, 50}}), 0);
  EXPECT_FALSE(cache.Look(0, 10, plan));
  cache.Install(MapOf(6, 0, 8, {{0, 8, 50}}), 0);
  EXPECT_TRUE(cache.Look(0, 10, plan));
}

TEST(InodeCache, Install_OfNone_VoidsWhatIsOlder) {
  InodeCache cache;
  Plan plan;
  cache.Install(MapOf(5, 0, 8, {{0, 8, 50}}), 0);
  ASSERT_TRUE(cache.Look(0, 10, plan));
  cache.Install({}, 0);
  EXPECT_TRUE(cache.StillValid(plan.epoch)) << "as the reply to a write that changed no map";
  cache.Install(MapOf(0, 4, 0, {}), 0);
  EXPECT_TRUE(cache.Look(0, 10, plan));
  cache.Install(MapOf(0, 6, 0, {}), 1);
  EXPECT_TRUE(cache.Look(0, 10, plan)) << "of another session";
  cache.Install(MapOf(0, 6, 0, {}), 0);
  EXPECT_FALSE(cache.StillValid(plan.epoch));
  EXPECT_FALSE(cache.Look(0, 10, plan));
  cache.Install(MapOf(6, 0, 8, {{0, 8, 50}}), 0);  // granted to a read that this has overtaken
  EXPECT_FALSE(cache.Look(0, 10, plan));
  cache.Install(MapOf(7, 0, 8, {{0, 8, 50}}), 0);
  EXPECT_TRUE(cache.Look(0, 10, plan));
}

TEST(InodeCache, Doubt_TrustsNoMapUntilItHasEnded) {
  InodeCache cache;
  Plan plan;
  cache.Install(MapOf(5, 0, 8, {{0, 8, 50}}), 0);
  ASSERT_TRUE(cache.Look(0, 10, plan));
  cache.BeginDoubt();
  EXPECT_FALSE(cache.StillValid(plan.epoch)) << "a read that is on its way";
  cache.BeginDoubt();
  cache.Install(MapOf(7, 0, 8, {{0, 8, 50}}), 0);
  EXPECT_FALSE(cache.Look(0, 10, plan));
  cache.EndDoubt();
  cache.Install(MapOf(8, 0, 8, {{0, 8, 50}}), 0);
  EXPECT_FALSE(cache.Look(0, 10, plan)) << "of two doubts one is left";
  cache.EndDoubt();
  cache.Install(MapOf(9, 0, 8, {{0, 8, 50}}), 0);
  EXPECT_TRUE(cache.Look(0, 10, plan));
}

}  // namespace client
}  // namespace termfs::fs
