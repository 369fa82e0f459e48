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

}  // namespace
}  // namespace termfs::tlib::server
