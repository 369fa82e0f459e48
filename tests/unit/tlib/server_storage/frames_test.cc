// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/frames.h"

#include <gtest/gtest.h>

#include <set>

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

driver::TermRegionOptions ValidatedOptions(uint64_t pages) {
  driver::TermRegionOptions options = Options(pages);
  options.network_way = driver::ReadWay::kValidated;
  return options;
}

// The fake refuses to take memory back that was not revoked before.
TEST(Frames, ReadersValidate_MemoryGoesAfterTheyWereTold) {
  driver::FakeTermRegion term(ValidatedOptions(4096));
  int kicks = 0;
  Frames frames(term, [&] { kicks++; });
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
