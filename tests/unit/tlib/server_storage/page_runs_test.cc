// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/page_runs.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace termfs::tlib::server {
namespace {

class PageRunsTest : public testing::Test {
 protected:
  std::byte* Buffer(size_t page) { return memory_.data() + page * kPageSize; }

  std::vector<std::byte> memory_ = std::vector<std::byte>(1024 * kPageSize);
  std::unique_ptr<LongPageRuns> runs_ = std::make_unique<LongPageRuns>(BlockIo::Kind::kWrite);
};

TEST_F(PageRunsTest, Add_AdjacentHereAndThere_IsOnePiece) {
  runs_->Add({10}, Buffer(3));
  runs_->Add({11}, Buffer(4));
  runs_->Add({12}, Buffer(8));
  runs_->Add({20}, Buffer(9));
  ASSERT_EQ(runs_->ios().size(), 2U);
  EXPECT_EQ(runs_->pages(), 4U);
  const BlockIo& first = runs_->ios()[0];
  ASSERT_EQ(first.pieces.size(), 2U);
  EXPECT_EQ(first.pieces[0].iov_base, Buffer(3));
  EXPECT_EQ(first.pieces[0].iov_len, 2 * kPageSize);
  EXPECT_EQ(first.pieces[1].iov_base, Buffer(8));
  EXPECT_EQ(runs_->ios()[1].offset, 20 * kPageSize);
}

TEST_F(PageRunsTest, Add_AdjacentPagesInScatteredFrames_HasFewPiecesInEachAccess) {
  for (uint64_t i = 0; i < LongPageRuns::kMaxPages; i++) {
    runs_->Add({i}, Buffer(2 * i));
  }
  ASSERT_EQ(runs_->ios().size(), LongPageRuns::kMaxPages / LongPageRuns::kMostPieces);
  for (const BlockIo& io : runs_->ios()) {
    EXPECT_EQ(io.pieces.size(), LongPageRuns::kMostPieces);
  }
}

TEST_F(PageRunsTest, Add_AllAdjacent_IsSplitByLength) {
  for (uint64_t i = 0; i < LongPageRuns::kMaxPages; i++) {
    runs_->Add({i}, Buffer(i));
  }
  ASSERT_EQ(runs_->ios().size(), 2U);
  for (size_t i = 0; i < 2; i++) {
    ASSERT_EQ(runs_->ios()[i].pieces.size(), 1U);
    EXPECT_EQ(runs_->ios()[i].pieces[0].iov_len, LongPageRuns::kMostBytes);
  }
  runs_->ios()[1].status = Status::Error(EIO, "injected");
  EXPECT_TRUE(runs_->StatusOf(255).ok());
  EXPECT_EQ(runs_->StatusOf(256).code(), EIO);
}

}  // namespace
}  // namespace termfs::tlib::server
