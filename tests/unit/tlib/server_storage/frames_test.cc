// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/frames.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <set>

#include "driver/softnic/softnic.h"
#include "tests/fakes/fake_nic.h"

namespace termfs::tlib::server {
namespace {

driver::TermRegionOptions Options(uint64_t pages) {
  driver::TermRegionOptions options;
  options.max_pages = options.pages = pages;
  return options;
}

TEST(Frames, Take_UpToTheLimit_EachOnce) {
  driver::FakeTermRegion term(Options(3000));
  Frames frames(term);
  EXPECT_FALSE(frames.Take().has_value());
  ASSERT_TRUE(frames.SetLimit(1500, nullptr).ok());
  std::set<uint32_t> taken;
  while (const auto frame = frames.Take()) {
    EXPECT_LT(frame->value, 1500U);
    EXPECT_TRUE(taken.insert(frame->value).second);
  }
  EXPECT_EQ(taken.size(), 1500U);
  EXPECT_EQ(frames.SetLimit(3001, nullptr).code(), EINVAL);
}

TEST(Frames, SetLimit_Lower_RetiresFramesAsTheyComeBack) {
  driver::FakeTermRegion term(Options(3000));
  Frames frames(term);
  ASSERT_TRUE(frames.SetLimit(3000, nullptr).ok());
  EXPECT_EQ(term.committed_frames(), 3000U);
  std::vector<driver::FrameIndex> taken;
  while (const auto frame = frames.Take()) {
    taken.push_back(*frame);
  }
  ASSERT_TRUE(frames.SetLimit(1000, nullptr).ok());
  EXPECT_EQ(term.committed_frames(), 3000U);
  for (const driver::FrameIndex frame : taken) {
    frames.Give(frame);
  }
  EXPECT_EQ(term.committed_frames(), 1024U);  // whole chunks
  EXPECT_EQ(frames.free(), 1000U);
  ASSERT_TRUE(frames.SetLimit(0, nullptr).ok());
  EXPECT_EQ(term.committed_frames(), 0U);
}

// While the kernel clears memory others want frames, and give some back.
TEST(Frames, Prepare_OthersGoOnMeanwhile) {
  driver::FakeTermRegion term(Options(4096));
  Frames frames(term);
  ASSERT_TRUE(frames.SetLimit(1024, nullptr).ok());
  int commits = 0;
  term.SetOnCommit([&] {
    commits++;
    const auto frame = frames.Take();
    ASSERT_TRUE(frame.has_value());
    frames.Give(*frame);
  });
  std::vector<uint32_t> steps;
  ASSERT_TRUE(frames.Prepare(3000, [&](uint32_t ready) { steps.push_back(ready); }).ok());
  EXPECT_EQ(commits, 2);
  EXPECT_EQ(steps, (std::vector<uint32_t>{1024 * 2, 3000}));
  EXPECT_EQ(frames.limit(), 1024U);
  EXPECT_EQ(frames.ready(), 3000U);
  ASSERT_TRUE(frames.SetLimit(3000, nullptr).ok());
  EXPECT_EQ(commits, 2) << "it is there already";
  EXPECT_EQ(frames.free(), 3000U);
}

TEST(Frames, Prepare_WithoutMemory_GivesBackWhatItHad) {
  driver::FakeTermRegion term(Options(4096));
  Frames frames(term);
  ASSERT_TRUE(frames.SetLimit(1000, nullptr).ok());
  term.FailCommitsFrom(3072);
  EXPECT_EQ(frames.Prepare(4096, nullptr).code(), ENOMEM);
  EXPECT_EQ(term.committed_frames(), 1024U);
  EXPECT_EQ(frames.ready(), 1000U);
  ASSERT_TRUE(frames.Prepare(3000, nullptr).ok());
  frames.DropPrepared();
  EXPECT_EQ(term.committed_frames(), 1024U);
  EXPECT_EQ(frames.free(), 1000U);
}

TEST(Frames, SetLimit_RaisedWhileFramesBeyondAreInUse_DoesNotHandThemOutTwice) {
  driver::FakeTermRegion term(Options(100));
  Frames frames(term);
  ASSERT_TRUE(frames.SetLimit(100, nullptr).ok());
  std::vector<driver::FrameIndex> taken;
  while (const auto frame = frames.Take()) {
    taken.push_back(*frame);
  }
  ASSERT_TRUE(frames.SetLimit(10, nullptr).ok());
  ASSERT_TRUE(frames.SetLimit(100, nullptr).ok());
  EXPECT_EQ(frames.free(), 0U);
  frames.Give(taken.back());
  EXPECT_EQ(frames.Take(), taken.back());
  EXPECT_FALSE(frames.Take().has_value());
}

// ---------------------------------------------------------------------------------------------------------------
// Sparse frames.

struct SparseFrames : testing::Test {
  SparseFrames() { EXPECT_TRUE(frames.SetLimit(10, nullptr).ok()); }
  static driver::TermRegionOptions SparseOptions() {
    driver::TermRegionOptions options = Options(1000);
    options.sparse_frames = true;
    return options;
  }
  driver::FrameIndex TakeAt(uint64_t page) {
    const auto frame = frames.Take();
    EXPECT_TRUE(frame.has_value() && frames.Place(*frame, {page}));
    return *frame;
  }
  driver::FakeTermRegion term{SparseOptions()};
  Frames frames{term, Frames::Kind::kSparse};
};

TEST_F(SparseFrames, Place_GivesThePagesMemory_GiveTakesItBack) {
  EXPECT_EQ(term.committed_frames(), 0U);
  const driver::FrameIndex frame = TakeAt(777);
  EXPECT_EQ(term.committed_frames(), 1U);
  EXPECT_EQ(frames.data(frame), term.frame({777}));
  term.Publish({777}, frame);
  EXPECT_EQ(term.Published({777}), term.frame({777}));
  term.Hide({777});
  frames.Give(frame);
  EXPECT_EQ(term.committed_frames(), 0U);
  EXPECT_EQ(frames.used(), 0U);
}

TEST_F(SparseFrames, Take_BudgetIsTheLimit_WhereverPagesAre) {
  for (uint64_t i = 0; i < 10; i++) {
    TakeAt(i * 100);
  }
  EXPECT_FALSE(frames.Take().has_value());
  EXPECT_EQ(term.committed_frames(), 10U);
}

TEST_F(SparseFrames, Place_PageThatAnotherFrameIsAt_IsRefused) {
  const driver::FrameIndex first = TakeAt(5);
  const auto second = frames.Take();
  ASSERT_TRUE(second.has_value());
  EXPECT_FALSE(frames.Place(*second, {5}));
  frames.Give(*second);
  EXPECT_EQ(term.committed_frames(), 1U);  // the first one's
  frames.Give(first);
  TakeAt(5);
}

TEST_F(SparseFrames, Place_AtAnotherPage_TakesTheFormerMemoryBack) {
  const driver::FrameIndex frame = TakeAt(5);
  ASSERT_TRUE(frames.Place(frame, {6}));
  EXPECT_EQ(term.committed_frames(), 1U);
  EXPECT_EQ(frames.data(frame), term.frame({6}));
  TakeAt(5);
}

TEST_F(SparseFrames, Place_NoMemory_IsRefused_AndLaterPossible) {
  const auto frame = frames.Take();
  term.FailCommitsFrom(500);
  EXPECT_FALSE(frames.Place(*frame, {600}));
  term.FailCommitsFrom(UINT32_MAX);
  EXPECT_TRUE(frames.Place(*frame, {600}));
}

TEST_F(SparseFrames, Copy_ThePageStaysWhereItIs) {
  const driver::FrameIndex from = TakeAt(5);
  std::memset(frames.data(from), 7, kPageSize);
  const auto to = frames.Take();
  frames.Copy(from, *to);
  EXPECT_EQ(frames.data(*to), term.frame({5}));
  frames.Give(from);
  EXPECT_EQ(term.committed_frames(), 1U);
  EXPECT_EQ(static_cast<int>(*frames.data(*to)), 7);
}

// With memory of which it can be told what there is.
TEST(SparseFramesOnATmpfs, MemoryIsThatOfPages_AndARestartKeepsThoseOnly) {
  const auto nic = driver::CreateSoftNic().value();
  const auto domain = nic->CreateProtectionDomain().value();
  driver::TermRegionOptions options = Options(100'000);
  options.sparse_frames = true;
  const auto term = domain->RegisterTermRegion(options).value();
  const auto pages_allocated = [fd = term->FramesFd().value().release()] {
    struct stat found {};
    EXPECT_EQ(fstat(fd, &found), 0);
    return found.st_blocks * 512 / static_cast<int64_t>(kPageSize);
  };
  {
    Frames frames(*term, Frames::Kind::kSparse);
    ASSERT_TRUE(frames.SetLimit(50, nullptr).ok());
    for (uint64_t i = 0; i < 50; i++) {
      const auto frame = frames.Take();
      ASSERT_TRUE(frames.Place(*frame, {i * 2000}));
      std::memset(frames.data(*frame), static_cast<int>(i) + 1, kPageSize);
    }
    EXPECT_EQ(pages_allocated(), 50);
  }
  Frames again(*term, Frames::Kind::kSparse);
  again.Adopt({3}, {6000});
  again.Adopt({9}, {18000});
  ASSERT_TRUE(again.SetLimit(50, nullptr).ok());
  again.DecommitRest();
  EXPECT_EQ(pages_allocated(), 2);
  EXPECT_EQ(static_cast<int>(*again.data({3})), 4);
  EXPECT_EQ(static_cast<int>(*again.data({9})), 10);
  again.Give({3});
  EXPECT_EQ(pages_allocated(), 1);
}

// ---------------------------------------------------------------------------------------------------------------
// Where clients validate.

driver::TermRegionOptions ValidatedOptions(uint64_t pages) {
  driver::TermRegionOptions options = Options(pages);
  options.network_way = driver::ReadWay::kValidated;
  return options;
}

// The fake refuses to take memory back that was not revoked before.
TEST(Frames, ReadersValidate_MemoryGoesAfterTheyWereTold) {
  driver::FakeTermRegion term(ValidatedOptions(4096));
  int kicks = 0;
  Frames frames(term, Frames::Kind::kDense, [&] { kicks++; });
  ASSERT_TRUE(frames.SetLimit(4096, nullptr).ok());
  std::vector<driver::FrameIndex> taken;
  while (const auto frame = frames.Take()) {
    taken.push_back(*frame);
  }
  EXPECT_EQ(frames.BeginRetiring(), 0U);
  ASSERT_TRUE(frames.SetLimit(1024, nullptr).ok());
  EXPECT_EQ(kicks, 0);
  for (const driver::FrameIndex frame : taken) {
    if (frame.value >= 2048) {
      frames.Give(frame);
    }
  }
  EXPECT_EQ(kicks, 2);
  EXPECT_EQ(frames.retiring(), 2U);
  EXPECT_EQ(term.committed_frames(), 4096U);
  const uint64_t epoch = frames.BeginRetiring();
  EXPECT_EQ(epoch, term.keys(true).chunk_epoch);
  for (const driver::FrameIndex frame : taken) {
    if (frame.value >= 1024 && frame.value < 2048) {
      frames.Give(frame);  // too late for this round
    }
  }
  EXPECT_EQ(term.committed_frames(), 4096U);
  frames.EndRetiring();
  EXPECT_EQ(term.committed_frames(), 2048U);
  EXPECT_EQ(frames.retiring(), 1U);
  EXPECT_GT(frames.BeginRetiring(), epoch);
  frames.EndRetiring();
  EXPECT_EQ(term.committed_frames(), 1024U);
  EXPECT_EQ(frames.BeginRetiring(), 0U);
}

TEST(Frames, ReadersValidate_ATierThatGrowsAgainKeepsItsMemory) {
  driver::FakeTermRegion term(ValidatedOptions(4096));
  Frames frames(term);
  ASSERT_TRUE(frames.SetLimit(4096, nullptr).ok());
  ASSERT_TRUE(frames.SetLimit(1024, nullptr).ok());
  ASSERT_TRUE(frames.SetLimit(2048, nullptr).ok());  // before anybody was told
  EXPECT_EQ(frames.retiring(), 2U);
  EXPECT_NE(frames.BeginRetiring(), 0U);
  ASSERT_TRUE(frames.SetLimit(3072, nullptr).ok());  // and while they are told
  EXPECT_EQ(frames.retiring(), 1U);
  ASSERT_TRUE(frames.SetLimit(2048, nullptr).ok());  // it retires anew, which this round knows nothing of
  frames.EndRetiring();
  EXPECT_EQ(term.committed_frames(), 3072U);
  EXPECT_EQ(frames.retiring(), 1U);
  EXPECT_NE(frames.BeginRetiring(), 0U);
  frames.EndRetiring();
  EXPECT_EQ(term.committed_frames(), 2048U);
}

}  // namespace
}  // namespace termfs::tlib::server
