// SPDX-License-Identifier: Apache-2.0
#include "metadata/disk_room.h"

#include <gtest/gtest.h>

#include <limits>

namespace termfs::metadata {
namespace {

constexpr uint64_t kMoreThanThereIs = std::numeric_limits<uint64_t>::max() - 1;

TEST(DiskRoom, Check_ByWhatItIsFor) {
  const DiskRoom room(testing::TempDir(), kMoreThanThereIs, 1);
  EXPECT_EQ(room.CheckGrowth().code(), ENOSPC);
  EXPECT_NE(room.CheckGrowth().message().find("MiB free"), std::string_view::npos);
  EXPECT_TRUE(room.CheckChange().ok());
}

TEST(DiskRoom, Check_AFileSystemThatDoesNotAnswerStopsNobody) {
  const DiskRoom room("/nonexistent", kMoreThanThereIs, kMoreThanThereIs);
  EXPECT_TRUE(room.CheckGrowth().ok());
}

}  // namespace
}  // namespace termfs::metadata
