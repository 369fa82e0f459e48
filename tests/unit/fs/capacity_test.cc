// SPDX-License-Identifier: Apache-2.0
//
// The order of a change of the capacity, and what is left when a step of it fails.
#include "fs/server/capacity.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/unit/eventually.h"
#include "tests/unit/fs/memory_volume.h"
#include "tests/unit/no_threads.h"

namespace termfs::fs {
namespace {

using server::Capacity;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kPages = 32 * kMiB >> kPageBits;

class CapacityTest : public testing::Test {
 protected:
  uint64_t noted() const { return noted_; }
  uint64_t served() { return volume_.tlib().region_pages(); }
  uint64_t decided() { return volume_.names().superblock().capacity_pages; }

  // Called with the pages that are to be noted; may fail.
  std::function<Status(uint64_t)> note_;
  uint64_t noted_ = kPages;
  MemoryVolume volume_{32 * kMiB};
  const std::string here_ = std::filesystem::current_path().string();
  Capacity capacity_{Capacity::Parts{
      .names = volume_.names(),
      .server = volume_.tlib(),
      .device = here_,  // no file that would have to grow
      .meta = here_,
      .note = [this](uint64_t pages) -> Status {
        if (note_) {
          RETURN_IF_ERROR(note_(pages));
        }
        noted_ = pages;
        return Status::Ok();
      },
      .confine = [this](uint64_t pages) { return volume_.names().Confine(pages); },
      .evacuate =
          [](const std::function<bool()>&) { return Result<server::Evacuation::Pass>(server::Evacuation::Pass{}); },
      .alone = [](const std::function<Status()>& what) { return what(); }}};
};

TEST_F(CapacityTest, Grow_ServesThenNotesThenDecides) {
  note_ = [&](uint64_t pages) {
    EXPECT_EQ(served(), pages) << "whoever reads the settings after a crash finds a region as large";
    EXPECT_EQ(decided(), kPages);
    return Status::Ok();
  };
  ASSERT_TRUE(capacity_.Set(2 * kPages).ok());
  EXPECT_EQ(decided(), 2 * kPages);
  EXPECT_EQ(noted(), 2 * kPages);
}

TEST_F(CapacityTest, Shrink_DecidesThenNotesThenCuts) {
  note_ = [&](uint64_t pages) {
    EXPECT_EQ(decided(), pages);
    EXPECT_EQ(served(), kPages) << "what is decided can be taken back by a loss of power until it is noted";
    return Status::Ok();
  };
  ASSERT_TRUE(capacity_.Set(kPages / 2).ok());
  EXPECT_TRUE(Eventually([&] { return !capacity_.progress().changing; }));
  EXPECT_EQ(capacity_.progress().failure, "");
  EXPECT_EQ(decided(), kPages / 2);
  EXPECT_EQ(noted(), kPages / 2);
  EXPECT_EQ(served(), kPages / 2);
}

TEST_F(CapacityTest, Shrink_WithoutThread_IsAnError_AndNothingHasChanged) {
  {
    const NoThreads none;
    EXPECT_EQ(capacity_.Set(kPages / 2).code(), EAGAIN);
  }
  EXPECT_FALSE(capacity_.progress().changing);
  EXPECT_EQ(capacity_.progress().target_pages, kPages);
  EXPECT_EQ(volume_.names().StatFs().free_pages, kPages) << "all of it is given out";
  EXPECT_EQ(decided(), kPages);
  ASSERT_TRUE(capacity_.Set(kPages / 2).ok());
  EXPECT_TRUE(Eventually([&] { return !capacity_.progress().changing; }));
  EXPECT_EQ(decided(), kPages / 2);
}

TEST_F(CapacityTest, Grow_Failed_IsToldToWhoLooksLater) {
  note_ = [&](uint64_t pages) {
    EXPECT_TRUE(pages == kPages || capacity_.progress().changing) << "who gave up waiting looks until it is not";
    return pages > kPages ? Status::Error(ENOSPC, "injected") : Status::Ok();
  };
  EXPECT_EQ(capacity_.Set(2 * kPages).code(), ENOSPC);
  EXPECT_NE(capacity_.progress().failure.find("injected"), std::string::npos) << capacity_.progress().failure;
  note_ = nullptr;
  ASSERT_TRUE(capacity_.Set(2 * kPages).ok());
  EXPECT_EQ(capacity_.progress().failure, "");
}

TEST_F(CapacityTest, Grow_NotNoted_TakesItBack) {
  note_ = [&](uint64_t pages) { return pages > kPages ? Status::Error(ENOSPC, "injected") : Status::Ok(); };
  EXPECT_EQ(capacity_.Set(2 * kPages).code(), ENOSPC);
  EXPECT_EQ(served(), kPages);
  EXPECT_EQ(decided(), kPages);
  EXPECT_EQ(noted(), kPages);
  EXPECT_FALSE(capacity_.progress().changing);
  note_ = nullptr;
  EXPECT_TRUE(capacity_.Set(2 * kPages).ok());
  EXPECT_EQ(decided(), 2 * kPages);
}

TEST_F(CapacityTest, Grow_NotTakenBack_IsCutByTheNextStartOrGoneOnWith) {
  note_ = [&](uint64_t) { return Status::Error(ENOSPC, "injected"); };
  EXPECT_EQ(capacity_.Set(2 * kPages).code(), ENOSPC);
  EXPECT_EQ(served(), 2 * kPages) << "as long as the settings may say so, the label does, too";
  EXPECT_EQ(decided(), kPages);
  note_ = nullptr;
  ASSERT_TRUE(capacity_.Set(kPages + kPages / 2).ok());
  EXPECT_EQ(decided(), kPages + kPages / 2);
  EXPECT_EQ(noted(), kPages + kPages / 2);
}

TEST_F(CapacityTest, Shrink_NotNoted_SaysThatTheRestFollows) {
  note_ = [&](uint64_t) { return Status::Error(EIO, "injected"); };
  ASSERT_TRUE(capacity_.Set(kPages / 2).ok());
  EXPECT_TRUE(Eventually([&] { return !capacity_.progress().changing; }));
  EXPECT_EQ(decided(), kPages / 2);
  EXPECT_EQ(served(), kPages);
  EXPECT_NE(capacity_.progress().failure.find("next start"), std::string::npos) << capacity_.progress().failure;
  note_ = nullptr;
  ASSERT_TRUE(capacity_.Set(kPages).ok()) << "the region has not lost them yet";
  EXPECT_EQ(decided(), kPages);
  EXPECT_EQ(capacity_.progress().failure, "");
}

TEST_F(CapacityTest, Set_TheSameAgain_EndsWhatAShrinkHasLeft) {
  note_ = [&](uint64_t) { return Status::Error(EIO, "injected"); };
  ASSERT_TRUE(capacity_.Set(kPages / 2).ok());
  EXPECT_TRUE(Eventually([&] { return !capacity_.progress().changing; }));
  ASSERT_EQ(decided(), kPages / 2);
  EXPECT_EQ(capacity_.Set(kPages / 2).code(), EIO);
  EXPECT_EQ(served(), kPages);
  EXPECT_NE(capacity_.progress().failure, "");
  note_ = nullptr;
  ASSERT_TRUE(capacity_.Set(kPages / 2).ok());
  EXPECT_EQ(noted(), kPages / 2);
  EXPECT_EQ(served(), kPages / 2);
  EXPECT_EQ(capacity_.progress().failure, "");
  EXPECT_FALSE(capacity_.progress().changing);
}

TEST_F(CapacityTest, Set_TheSameAgain_EndsWhatAGrowthHasLeft) {
  note_ = [&](uint64_t) { return Status::Error(ENOSPC, "injected"); };
  EXPECT_EQ(capacity_.Set(2 * kPages).code(), ENOSPC);
  ASSERT_EQ(served(), 2 * kPages);
  note_ = nullptr;
  ASSERT_TRUE(capacity_.Set(kPages).ok());
  EXPECT_EQ(served(), kPages);
  EXPECT_EQ(decided(), kPages);
}

}  // namespace
}  // namespace termfs::fs
