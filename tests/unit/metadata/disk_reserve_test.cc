// SPDX-License-Identifier: Apache-2.0
#include "metadata/disk_reserve.h"

#include <sys/stat.h>

#include <fstream>

#include "metadata/disk_room.h"
#include "tests/unit/metadata/test_volume.h"

namespace termfs::metadata {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class DiskReserveTest : public ::testing::Test {
 protected:
  std::string path() const { return directory_.path() + "/reserve"; }
  uint64_t Blocks() const {
    struct stat found {};
    return stat(path().c_str(), &found) == 0 ? static_cast<uint64_t>(found.st_blocks) * 512 : 0;
  }

  TemporaryDirectory directory_;
};

TEST_F(DiskReserveTest, Fill_AllocatesAndGiveUpFrees) {
  DiskReserve reserve(path(), 4 * kMiB);
  EXPECT_EQ(reserve.held(), 0u);
  EXPECT_FALSE(reserve.GiveUp(1)) << "there is nothing to give";
  reserve.Fill();
  EXPECT_EQ(reserve.held(), 4 * kMiB);
  EXPECT_GE(Blocks(), 4 * kMiB);
  EXPECT_TRUE(reserve.GiveUp(kMiB));
  EXPECT_EQ(reserve.held(), 3 * kMiB);
  EXPECT_LT(Blocks(), 4 * kMiB);
  EXPECT_TRUE(reserve.GiveUp(100 * kMiB)) << "what it has";
  EXPECT_EQ(reserve.held(), 0u);
  EXPECT_FALSE(reserve.GiveUp(1));
  reserve.Fill();
  EXPECT_EQ(reserve.held(), 4 * kMiB);
}

TEST_F(DiskReserveTest, Held_IsWhatAnEarlierOneLeft) {
  {
    DiskReserve earlier(path(), 4 * kMiB);
    earlier.Fill();
    EXPECT_TRUE(earlier.GiveUp(kMiB));
  }
  EXPECT_EQ(DiskReserve(path(), 4 * kMiB).held(), 3 * kMiB);
}

TEST_F(DiskReserveTest, Held_ALengthWithoutBlocksIsNone) {
  std::ofstream(path()).close();
  std::filesystem::resize_file(path(), 4 * kMiB);  // as a copy may be
  DiskReserve reserve(path(), 4 * kMiB);
  EXPECT_EQ(reserve.held(), 0u);
  reserve.Fill();
  EXPECT_EQ(reserve.held(), 4 * kMiB);
}

TEST_F(DiskReserveTest, None_MakesNoFile) {
  DiskReserve reserve(path(), 0);
  reserve.Fill();
  EXPECT_FALSE(reserve.GiveUp(1));
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(DiskReserveTest, Room_OfTheDiskIsThatOfTheReserve) {
  DiskReserve reserve(path(), 4 * kMiB);
  const DiskRoom room(directory_.path(), {.growth = kMiB, .changes = kMiB, .removals = 1}, reserve);
  room.FillReserve();
  EXPECT_EQ(reserve.held(), 4 * kMiB);
  room.MakeFree(kMiB);
  EXPECT_EQ(reserve.held(), 4 * kMiB) << "as much is free";
  room.MakeFree(uint64_t{1} << 60);
  EXPECT_EQ(reserve.held(), 0u);
  const DiskRoom narrow(directory_.path(), {.growth = uint64_t{1} << 60, .changes = 1, .removals = 1}, reserve);
  narrow.FillReserve();
  EXPECT_EQ(reserve.held(), 0u) << "not while there is no room for more records";
}

}  // namespace
}  // namespace termfs::metadata
