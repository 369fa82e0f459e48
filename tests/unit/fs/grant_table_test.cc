// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "fs/server/grants.h"
#include "tests/fakes/manual_clock.h"

namespace termfs::fs {

using server::GrantKey;
using server::GrantTable;

namespace {

std::vector<uint64_t> Sessions(GrantTable& table, const GrantKey& key, uint64_t keep = 0) {
  std::vector<GrantTable::Holder> holders;
  table.FindHolders(key, keep, holders);
  std::vector<uint64_t> sessions;
  for (const auto& holder : holders) {
    sessions.push_back(holder.session);
  }
  std::sort(sessions.begin(), sessions.end());
  return sessions;
}

using Numbers = std::vector<uint64_t>;
constexpr Nanoseconds kSecond = std::chrono::seconds(1);

}  // namespace

TEST(GrantTable, FindHolders_OfTheKeyAndNotTheCaller) {
  fakes::ManualClock clock;
  GrantTable table(clock, kSecond, 100);
  EXPECT_TRUE(table.Add(GrantKey::Attributes(5), 1));
  EXPECT_TRUE(table.Add(GrantKey::Attributes(5), 2));
  EXPECT_TRUE(table.Add(GrantKey::Entry(5, "a"), 3));
  EXPECT_EQ(Sessions(table, GrantKey::Attributes(5)), (Numbers{1, 2}));
  EXPECT_EQ(Sessions(table, GrantKey::Attributes(5), 1), Numbers{2});
  EXPECT_EQ(Sessions(table, GrantKey::Attributes(6)), Numbers{});
  EXPECT_EQ(Sessions(table, GrantKey::Entry(5, "a")), Numbers{3});
  EXPECT_EQ(Sessions(table, GrantKey::Entry(5, "b")), Numbers{});
  EXPECT_EQ(Sessions(table, GrantKey::Entry(6, "a")), Numbers{});
}

TEST(GrantTable, DropEnded_LeavesThoseThatLast) {
  fakes::ManualClock clock;
  GrantTable table(clock, kSecond, 100);
  for (uint64_t ino = 0; ino < 10; ino++) {
    table.Add(GrantKey::Attributes(ino), 1);
  }
  clock.Advance(kSecond / 2);
  table.Add(GrantKey::Attributes(3), 1);  // renewed
  table.DropEnded();
  EXPECT_EQ(table.size(), 10U);
  clock.Advance(kSecond / 2);
  table.DropEnded();
  EXPECT_EQ(table.size(), 1U);
  EXPECT_EQ(Sessions(table, GrantKey::Attributes(3)), Numbers{1});
}

TEST(GrantTable, Add_EndsByTimeAndIsRenewed) {
  fakes::ManualClock clock;
  GrantTable table(clock, kSecond, 100);
  table.Add(GrantKey::Attributes(5), 1);
  table.Add(GrantKey::Attributes(6), 1);
  clock.Advance(kSecond / 2);
  table.Add(GrantKey::Attributes(5), 1);
  clock.Advance(kSecond / 2);
  EXPECT_EQ(Sessions(table, GrantKey::Attributes(5)), Numbers{1});
  EXPECT_EQ(Sessions(table, GrantKey::Attributes(6)), Numbers{});
  clock.Advance(kSecond);
  table.Add(GrantKey::Attributes(7), 1);
  EXPECT_EQ(table.size(), 1u) << "what has ended is taken out";
}

TEST(GrantTable, Add_RefusedWhenFull) {
  fakes::ManualClock clock;
  GrantTable table(clock, kSecond, 2);
  EXPECT_TRUE(table.Add(GrantKey::Attributes(1), 1));
  EXPECT_TRUE(table.Add(GrantKey::Attributes(2), 1));
  EXPECT_FALSE(table.Add(GrantKey::Attributes(3), 1));
  EXPECT_TRUE(table.Add(GrantKey::Attributes(2), 1)) << "it is there";
  table.AddAlways(GrantKey::Attributes(4), 1);
  EXPECT_EQ(Sessions(table, GrantKey::Attributes(4)), Numbers{1});
  clock.Advance(kSecond);
  EXPECT_TRUE(table.Add(GrantKey::Attributes(3), 1));
}

TEST(GrantTable, Remove_LeavesWhatWasGrantedAnew) {
  fakes::ManualClock clock;
  GrantTable table(clock, kSecond, 100);
  table.Add(GrantKey::Attributes(1), 1);
  table.Add(GrantKey::Attributes(2), 1);
  std::vector<GrantTable::Holder> holders;
  table.FindHolders(GrantKey::Attributes(1), 0, holders);
  table.FindHolders(GrantKey::Attributes(2), 0, holders);
  table.Add(GrantKey::Attributes(2), 1);
  EXPECT_TRUE(table.LastsAny(holders));
  table.Remove(holders);
  EXPECT_EQ(Sessions(table, GrantKey::Attributes(1)), Numbers{});
  EXPECT_EQ(Sessions(table, GrantKey::Attributes(2)), Numbers{1});
  table.RemoveSession(1);
  EXPECT_FALSE(table.LastsAny(holders));
  EXPECT_EQ(table.size(), 0u);
}

TEST(GrantTable, Changes_CountEachLookForHolders) {
  fakes::ManualClock clock;
  GrantTable table(clock, kSecond, 100);
  const uint64_t before = table.changes();
  Sessions(table, GrantKey::Attributes(1));
  EXPECT_NE(table.changes(), before);
}

}  // namespace termfs::fs
