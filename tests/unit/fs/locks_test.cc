// SPDX-License-Identifier: Apache-2.0
//
// The server's table of locks: what conflicts, who waits, who is served, and a model of single bytes beside it.
#include "fs/server/locks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "base/random.h"

namespace termfs::fs::server {

namespace {

using State = LockTable::State;
constexpr LockType kRead = LockType::kRead;
constexpr LockType kWrite = LockType::kWrite;
constexpr LockType kUnlock = LockType::kUnlock;

LockOwner Owner(uint64_t id, uint64_t client = 1) { return {.holder = {.client = client}, .flock = false, .id = id}; }
LockOwner Flock(uint64_t id) { return {.holder = {.client = 1}, .flock = true, .id = id}; }
LockRequest Of(LockOwner owner, LockType type, uint64_t start = 0, uint64_t end = kLastLockByte, uint64_t ino = 7) {
  return {.ino = ino, .owner = owner, .type = type, .start = start, .end = end, .pid = 0};
}

class Locks : public testing::Test {
 protected:
  State Try(const LockRequest& request, uint64_t ticket = 0) {
    granted.clear();
    const auto answer = table.Apply(request, {9, ticket}, granted);
    error = answer.status().code();
    return answer.ok() ? answer->state : State::kRefused;
  }
  std::vector<uint64_t> Granted() const {
    std::vector<uint64_t> numbers;
    for (const LockTicket& ticket : granted) {
      numbers.push_back(ticket.number);
    }
    return numbers;
  }
  LockTable table;
  LockTable::Tickets granted;
  int error = 0;
};

}  // namespace

TEST_F(Locks, Closes_MayEndForAMoment_AndNotAgainSoon) {
  BootTime now{std::chrono::hours(1)};
  const auto may_end = [&](uint64_t asker) { return table.MayEnd(Of(Owner(asker), kWrite), now); };
  table.Closes(7, Owner(1), now);
  EXPECT_FALSE(may_end(2)) << "there is no lock";
  ASSERT_EQ(Try(Of(Owner(1), kWrite, 0, 9)), State::kDone);
  EXPECT_FALSE(may_end(2)) << "it was not locked when it was closed";
  table.Closes(7, Owner(3), now);
  EXPECT_FALSE(may_end(2)) << "another was closed";
  table.Closes(7, Owner(1), now);
  EXPECT_TRUE(may_end(2));
  EXPECT_FALSE(may_end(1)) << "its own is not in its way";
  EXPECT_FALSE(table.MayEnd(Of(Owner(2), kWrite, 10, 20), now)) << "nothing is in its way";
  now = now + LockTable::kMoment;
  EXPECT_FALSE(may_end(2));
  table.Closes(7, Owner(1), now);
  EXPECT_FALSE(may_end(2)) << "another descriptor has kept it open, and may again";
  now = now + LockTable::kStaysOpen;
  table.Closes(7, Owner(1), now);
  EXPECT_TRUE(may_end(2));
  ASSERT_EQ(Try(Of(Owner(1), kUnlock)), State::kDone);
  ASSERT_EQ(Try(Of(Owner(1), kWrite)), State::kDone);
  EXPECT_FALSE(may_end(2)) << "a lock of later";
}

TEST(LockRanges, Set_SplitsMergesAndReplaces) {
  LockRanges ranges;
  ranges.Set(10, 19, kRead, 1);
  ranges.Set(20, 29, kRead, 1);
  EXPECT_EQ(ranges.all(), (std::vector<LockRange>{{10, 29, false, 1}}));
  ranges.Set(15, 17, kWrite, 1);
  EXPECT_EQ(ranges.all(), (std::vector<LockRange>{{10, 14, false, 1}, {15, 17, true, 1}, {18, 29, false, 1}}));
  ranges.Set(12, 15, kUnlock, 1);
  EXPECT_EQ(ranges.all(), (std::vector<LockRange>{{10, 11, false, 1}, {16, 17, true, 1}, {18, 29, false, 1}}));
  ranges.Set(0, kLastLockByte, kRead, 1);
  EXPECT_EQ(ranges.all(), (std::vector<LockRange>{{0, kLastLockByte, false, 1}}));
  EXPECT_TRUE(ranges.Splits(1, 5));
  EXPECT_FALSE(ranges.Splits(0, 5));
  ranges.Set(0, kLastLockByte, kUnlock, 1);
  EXPECT_TRUE(ranges.empty());
}

TEST_F(Locks, Apply_ConflictsOnlyWhereOneWrites) {
  EXPECT_EQ(Try(Of(Owner(1), kRead, 0, 9)), State::kDone);
  EXPECT_EQ(Try(Of(Owner(2), kRead, 5, 14)), State::kDone);
  EXPECT_EQ(Try(Of(Owner(3), kWrite, 14, 20)), State::kRefused);
  EXPECT_EQ(error, 0);
  EXPECT_EQ(Try(Of(Owner(3), kWrite, 15, 20)), State::kDone);
  EXPECT_EQ(Try(Of(Owner(1), kWrite, 0, 4)), State::kDone) << "an upgrade of what is nobody else's";
  EXPECT_EQ(Try(Of(Owner(1), kWrite, 0, 5)), State::kRefused);
  EXPECT_EQ(Try(Of(Owner(3), kWrite, 0, 99, 8)), State::kDone) << "another file";
  EXPECT_EQ(Try(Of(Owner(1, 2), kRead, 15, 15)), State::kRefused) << "another client's owner of the same number";
  EXPECT_EQ(table.locks(), 5u);
}

TEST_F(Locks, Apply_FlockAndRecordLocksDoNotSeeEachOther) {
  EXPECT_EQ(Try(Of(Owner(1), kWrite)), State::kDone);
  EXPECT_EQ(Try(Of(Flock(2), kWrite)), State::kDone);
  EXPECT_EQ(Try(Of(Flock(3), kRead)), State::kRefused);
}

TEST_F(Locks, Test_NamesTheFirstInTheWay) {
  LockRequest held = Of(Owner(1), kWrite, 50, 59);
  held.pid = 77;
  Try(held);
  Try(Of(Owner(2), kWrite, 40, 49));
  EXPECT_FALSE(table.Test(Of(Owner(3), kWrite, 0, 39)));
  EXPECT_EQ(table.Test(Of(Owner(3), kRead, 0, 99))->range.start, 40u);
  EXPECT_EQ(table.Test(Of(Owner(3), kRead, 50, 99))->range.pid, 77u);
  EXPECT_FALSE(table.Test(Of(Owner(1), kWrite, 50, 99)));
}

TEST_F(Locks, Queue_IsServedInOrder) {
  Try(Of(Owner(1), kWrite));
  EXPECT_EQ(Try(Of(Owner(2), kWrite, 0, 9), 1), State::kQueued);
  EXPECT_EQ(Try(Of(Owner(3), kRead, 5, 9), 2), State::kQueued);
  EXPECT_EQ(Try(Of(Owner(4), kRead, 7, 20), 3), State::kQueued);
  EXPECT_EQ(table.waits(), 3u);
  EXPECT_EQ(Try(Of(Owner(1), kUnlock)), State::kDone);
  EXPECT_EQ(Granted(), (std::vector<uint64_t>{1}));
  EXPECT_EQ(Try(Of(Owner(2), kUnlock)), State::kDone);
  EXPECT_EQ(Granted(), (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(Try(Of(Owner(2), kWrite, 0, 9), 1), State::kDone) << "it is asked for by its ticket";
  EXPECT_EQ(table.waits(), 0u);
}

TEST_F(Locks, Queue_AskedAgainWaitsOnce) {
  Try(Of(Owner(1), kWrite));
  EXPECT_EQ(Try(Of(Owner(2), kWrite), 1), State::kQueued);
  EXPECT_EQ(Try(Of(Owner(2), kWrite), 1), State::kQueued);
  EXPECT_EQ(table.waits(), 1u);
}

TEST_F(Locks, Queue_ADowngradeLetsReadersIn) {
  Try(Of(Owner(1), kWrite));
  EXPECT_EQ(Try(Of(Owner(2), kRead), 1), State::kQueued);
  EXPECT_EQ(Try(Of(Owner(1), kRead)), State::kDone);
  EXPECT_EQ(Granted(), (std::vector<uint64_t>{1}));
}

TEST_F(Locks, Cancel_EndsAWaitOrSaysThatItWasGranted) {
  Try(Of(Owner(1), kWrite));
  Try(Of(Owner(2), kWrite), 1);
  Try(Of(Owner(3), kWrite), 2);
  EXPECT_TRUE(table.Cancel({9, 1}));
  Try(Of(Owner(1), kUnlock));
  EXPECT_EQ(Granted(), (std::vector<uint64_t>{2}));
  EXPECT_FALSE(table.Cancel({9, 2}));
  EXPECT_EQ(Try(Of(Owner(3), kWrite), 2), State::kDone);
  EXPECT_TRUE(table.Cancel({9, 2})) << "nothing is known of it any more";
  Try(Of(Owner(3), kUnlock));
  EXPECT_EQ(table.locks(), 0u);
  EXPECT_EQ(Try(Of(Owner(1), kWrite)), State::kDone);
}

TEST_F(Locks, Deadlock_OfTwoOwners) {
  Try(Of(Owner(1), kWrite, 0, 0));
  Try(Of(Owner(2, 2), kWrite, 1, 1));
  EXPECT_EQ(Try(Of(Owner(1), kWrite, 1, 1), 1), State::kQueued);
  EXPECT_EQ(Try(Of(Owner(2, 2), kWrite, 0, 0), 2), State::kRefused);
  EXPECT_EQ(error, EDEADLK);
  EXPECT_EQ(table.waits(), 1u);
  EXPECT_EQ(Try(Of(Owner(2, 2), kWrite, 0, 0)), State::kRefused);
  EXPECT_EQ(error, 0) << "who does not wait is not told of deadlocks";
}

TEST_F(Locks, Deadlock_OverFilesAndThroughReaders) {
  Try(Of(Owner(1), kRead, 0, 0, 7));
  Try(Of(Owner(2), kRead, 0, 0, 7));
  Try(Of(Owner(3), kWrite, 0, 0, 8));
  Try(Of(Owner(4), kWrite, 0, 0, 9));
  EXPECT_EQ(Try(Of(Owner(2), kWrite, 0, 0, 8), 1), State::kQueued);
  EXPECT_EQ(Try(Of(Owner(3), kWrite, 0, 0, 9), 2), State::kQueued);
  EXPECT_EQ(Try(Of(Owner(4), kWrite, 0, 0, 7), 3), State::kRefused);
  EXPECT_EQ(error, EDEADLK);
  table.Cancel({9, 1});
  EXPECT_EQ(Try(Of(Owner(4), kWrite, 0, 0, 7), 4), State::kQueued);
}

TEST_F(Locks, Deadlock_UpgradeOfTwoReaders) {
  Try(Of(Owner(1), kRead));
  Try(Of(Owner(2), kRead));
  EXPECT_EQ(Try(Of(Owner(1), kWrite), 1), State::kQueued);
  EXPECT_EQ(Try(Of(Owner(2), kWrite), 2), State::kRefused);
  EXPECT_EQ(error, EDEADLK);
}

TEST_F(Locks, Flock_WaitsWithoutDeadlocks) {
  Try(Of(Flock(1), kWrite, 0, kLastLockByte, 7));
  Try(Of(Flock(2), kWrite, 0, kLastLockByte, 8));
  EXPECT_EQ(Try(Of(Flock(1), kWrite, 0, kLastLockByte, 8), 1), State::kQueued);
  EXPECT_EQ(Try(Of(Flock(2), kWrite, 0, kLastLockByte, 7), 2), State::kQueued) << "the kernel lets those wait, too";
}

TEST_F(Locks, Flock_GivesUpWhatItChanges) {
  Try(Of(Flock(1), kRead));
  Try(Of(Flock(2), kRead));
  EXPECT_EQ(Try(Of(Flock(3), kWrite), 1), State::kQueued);
  EXPECT_EQ(Try(Of(Flock(1), kWrite)), State::kRefused);
  EXPECT_EQ(Try(Of(Flock(2), kUnlock)), State::kDone);
  EXPECT_EQ(Granted(), (std::vector<uint64_t>{1})) << "the first has lost its lock by the attempt";
}

TEST_F(Locks, Drop_OfAHolderServesOthersAndSparesThem) {
  Try(Of(Owner(1), kWrite, 0, 9));
  Try(Of(Owner(2, 2), kWrite, 10, 19));
  Try(Of(Owner(3, 2), kWrite, 0, 9), 1);
  table.DropHolder({.client = 1}, granted);
  EXPECT_EQ(Granted(), (std::vector<uint64_t>{1}));
  EXPECT_EQ(table.locks(), 2u);
  table.DropFile({.client = 2}, 8, granted);
  EXPECT_EQ(table.locks(), 2u);
  table.DropFile({.client = 2}, 7, granted);
  EXPECT_EQ(table.locks(), 0u);
}

TEST_F(Locks, Limits_GrantedWaitsThatNobodyAsksForCount) {
  for (uint64_t i = 1; i <= LockTable::kMostWaits; ++i) {
    ASSERT_EQ(Try(Of(Owner(1), kWrite)), State::kDone);
    ASSERT_EQ(Try(Of(Owner(2), kWrite), i), State::kQueued);
    ASSERT_EQ(Try(Of(Owner(1), kUnlock)), State::kDone);
    ASSERT_EQ(Try(Of(Owner(2), kUnlock)), State::kDone);
  }
  Try(Of(Owner(1), kWrite));
  EXPECT_EQ(Try(Of(Owner(2), kWrite), 1U << 20), State::kRefused);
  EXPECT_EQ(error, ENOLCK);
  EXPECT_EQ(Try(Of(Owner(2), kWrite), 1), State::kDone) << "asked for";
  EXPECT_EQ(Try(Of(Owner(2), kWrite), 1U << 20), State::kQueued);
  table.DropWaits(9);
  EXPECT_EQ(Try(Of(Owner(2), kWrite), 1), State::kQueued);
}

TEST_F(Locks, Drop_OfAFileEndsTheHoldersWaitsForIt) {
  Try(Of(Owner(1), kWrite));
  EXPECT_EQ(Try(Of(Owner(3, 2), kWrite), 1), State::kQueued);
  EXPECT_EQ(Try(Of(Owner(4), kWrite), 2), State::kQueued);
  table.DropFile({.client = 2}, 7, granted);
  EXPECT_EQ(table.waits(), 1u);
  EXPECT_EQ(table.FilesOf({.client = 1}), (std::vector<uint64_t>{7}));
  EXPECT_EQ(table.FilesOf({.client = 2}), (std::vector<uint64_t>{}));
}

TEST_F(Locks, Drop_OfASessionEndsItsWaits) {
  Try(Of(Owner(1), kWrite));
  Try(Of(Owner(2), kWrite), 1);
  table.DropWaits(8);
  EXPECT_EQ(table.waits(), 1u);
  table.DropWaits(9);
  EXPECT_EQ(table.waits(), 0u);
  Try(Of(Owner(1), kUnlock));
  EXPECT_TRUE(granted.empty());
  EXPECT_EQ(table.locks(), 0u);
}

TEST_F(Locks, Replace_TakesBackWhatIsFree) {
  Try(Of(Owner(1), kWrite, 0, 9));
  Try(Of(Owner(2, 2), kWrite, 20, 29));
  Try(Of(Owner(3, 2), kWrite, 0, 0), 1);
  granted.clear();
  const auto lost = table.Replace(
      {.client = 1}, {Of(Owner(1), kRead, 5, 9), Of(Owner(1), kRead, 25, 26, 7), Of(Owner(1), kWrite, 0, 0, 8)},
      granted);
  EXPECT_EQ(lost, (std::vector<uint64_t>{7}));
  EXPECT_EQ(Granted(), (std::vector<uint64_t>{1}));
  EXPECT_EQ(table.Test(Of(Owner(9), kWrite, 4, 99))->range.start, 20u) << "of a file that is lost it has nothing";
  EXPECT_TRUE(table.Test(Of(Owner(9), kRead, 0, 0, 8)));
}

TEST_F(Locks, Limits_OfOneClient) {
  constexpr uint64_t kFar = uint64_t{1} << 40;
  Try(Of(Owner(1), kWrite, kFar, kFar + 9));
  for (uint64_t i = 1; i + 2 <= LockTable::kMostLocks; ++i) {
    ASSERT_EQ(Try(Of(Owner(1), kWrite, 2 * i, 2 * i)), State::kDone);
  }
  EXPECT_EQ(Try(Of(Owner(1), kWrite, 2 * kFar, 2 * kFar)), State::kRefused);
  EXPECT_EQ(error, ENOLCK);
  EXPECT_EQ(Try(Of(Owner(1), kUnlock, kFar + 1, kFar + 1)), State::kRefused) << "would be one more";
  EXPECT_EQ(error, ENOLCK);
  EXPECT_EQ(Try(Of(Owner(1), kUnlock, 2, 2)), State::kDone);
  EXPECT_EQ(Try(Of(Owner(2, 2), kWrite, 3 * kFar, 3 * kFar)), State::kDone) << "another client has its own";
  for (uint64_t i = 0; i < LockTable::kMostWaits; ++i) {
    ASSERT_EQ(Try(Of(Owner(2, 2), kWrite, 4, 4), i + 1), State::kQueued);
  }
  EXPECT_EQ(Try(Of(Owner(2, 2), kWrite, 4, 4), 1U << 20), State::kRefused);
  EXPECT_EQ(error, ENOLCK);
  EXPECT_EQ(Try(Of(Owner(1), kUnlock)), State::kDone);
}

namespace {

constexpr size_t kOwners = 5;
constexpr size_t kBytes = 16;

// What each owner has of each byte: nothing, a lock for reading, one for writing.
class Model {
 public:
  bool Free(size_t owner, LockType type, uint64_t start, uint64_t end) const {
    for (uint64_t byte = start; byte <= end; ++byte) {
      for (size_t other = 0; other < kOwners; ++other) {
        const char has = bytes_[other][byte];
        if (other != owner && type != kUnlock && (has == 'w' || (has == 'r' && type == kWrite))) {
          return false;
        }
      }
    }
    return true;
  }
  void Set(size_t owner, LockType type, uint64_t start, uint64_t end) {
    for (uint64_t byte = start; byte <= end; ++byte) {
      bytes_[owner][byte] = type == kUnlock ? '-' : type == kRead ? 'r' : 'w';
    }
  }

 private:
  std::array<std::array<char, kBytes>, kOwners> bytes_{};
};

struct Waiting {
  uint64_t ticket;
  size_t owner;
  LockType type;
  uint64_t start;
  uint64_t end;
};

}  // namespace

TEST(LockTable, Model_AgreesByteForByte) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    LockTable table;
    Model model;
    std::vector<Waiting> queue;
    uint64_t tickets = 0;
    // As many passes as it takes, first come first.
    const auto serve = [&] {
      std::vector<uint64_t> served;
      for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < queue.size();) {
          const Waiting w = queue[i];
          if (!model.Free(w.owner, w.type, w.start, w.end)) {
            ++i;
            continue;
          }
          model.Set(w.owner, w.type, w.start, w.end);
          served.push_back(w.ticket);
          queue.erase(queue.begin() + static_cast<ptrdiff_t>(i));
          changed = true;
        }
      }
      return served;
    };
    for (int step = 0; step < 600; ++step) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", step " << step);
      const size_t owner = random.Below(kOwners);
      const auto type = static_cast<LockType>(random.Below(3));
      const uint64_t start = random.Below(kBytes);
      const uint64_t end = start + random.Below(kBytes - start);
      const bool waits = random.Below(2) == 0;
      LockTable::Tickets granted;
      if (random.Below(12) == 0 && !queue.empty()) {
        const size_t which = random.Below(queue.size());
        EXPECT_TRUE(table.Cancel({1, queue[which].ticket}));
        queue.erase(queue.begin() + static_cast<ptrdiff_t>(which));
        continue;
      }
      const uint64_t ticket = waits ? ++tickets : 0;
      const auto answer = table.Apply(Of(Owner(owner), type, start, end), {1, ticket}, granted);
      if (model.Free(owner, type, start, end)) {
        ASSERT_TRUE(answer.ok());
        ASSERT_EQ(answer->state, State::kDone);
        model.Set(owner, type, start, end);
        std::vector<uint64_t> numbers;
        for (const LockTicket& t : granted) {
          numbers.push_back(t.number);
        }
        ASSERT_EQ(numbers, serve());
      } else if (!waits) {
        ASSERT_TRUE(answer.ok());
        ASSERT_EQ(answer->state, State::kRefused);
      } else if (answer.ok()) {
        ASSERT_EQ(answer->state, State::kQueued);
        queue.push_back({ticket, owner, type, start, end});
      } else {
        ASSERT_EQ(answer.status().code(), EDEADLK);
      }
      for (size_t byte = 0; byte < kBytes; ++byte) {
        for (const LockType test : {kRead, kWrite}) {
          ASSERT_EQ(table.Test(Of(Owner(99), test, byte, byte)).has_value(), !model.Free(99, test, byte, byte));
        }
      }
    }
  }
}

}  // namespace termfs::fs::server
