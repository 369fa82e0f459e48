// SPDX-License-Identifier: Apache-2.0
#include "metadata/disk_room.h"

#include <gtest/gtest.h>

#include <limits>

namespace termfs::metadata {
namespace {

constexpr uint64_t kMoreThanThereIs = std::numeric_limits<uint64_t>::max() - 1;

TEST(DiskRoom, Check_ByWhatItIsFor) {
  DiskReserve none("", 0);
  const DiskRoom room(testing::TempDir(), {.growth = kMoreThanThereIs, .changes = kMoreThanThereIs, .removals = 1},
                      none);
  EXPECT_EQ(room.CheckGrowth().code(), ENOSPC);
  EXPECT_NE(room.CheckGrowth().message().find("MiB free"), std::string_view::npos);
  EXPECT_EQ(room.CheckChange().code(), ENOSPC);
  EXPECT_TRUE(room.CheckRemoval().ok());
}

TEST(DiskRoom, Check_AFileSystemThatDoesNotAnswerStopsNobody) {
  DiskReserve none("", 0);
  const DiskRoom room("/nonexistent",
                      {.growth = kMoreThanThereIs, .changes = kMoreThanThereIs, .removals = kMoreThanThereIs}, none);
  EXPECT_TRUE(room.CheckGrowth().ok());
}

}  // namespace
}  // namespace termfs::metadata
