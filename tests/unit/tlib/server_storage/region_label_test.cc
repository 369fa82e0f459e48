// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/region_label.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/unique_fd.h"
#include "tests/unit/tlib/server_storage/temp_folder.h"
#include "tlib/server/device_contents.h"
#include "tlib/server/device_file.h"

namespace termfs::tlib::server {
namespace {

class RegionLabelTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(MakeDeviceFile(path_, kRegionStart + (64 << 10), nullptr).ok());
    fd_ = UniqueFd(open(path_.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(fd_.valid());
  }
  void Spoil(off_t at) {
    char byte = 0;
    ASSERT_EQ(pread(fd_.get(), &byte, 1, at), 1);
    byte = static_cast<char>(~byte);
    ASSERT_EQ(pwrite(fd_.get(), &byte, 1, at), 1);
  }
  TempFolder folder_;
  const std::string path_ = folder_.path() + "/device";
  UniqueFd fd_;
  const RegionLabel label_{.pages = 16, .volume = "one"};
};

TEST_F(RegionLabelTest, Read_FindsWhatWasWritten) {
  EXPECT_EQ(ReadRegionLabel(fd_.get(), path_).status().code(), ENOENT);
  ASSERT_TRUE(WriteRegionLabel(path_, label_).ok());
  const auto read = ReadRegionLabel(fd_.get(), path_);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(*read, label_);
  EXPECT_TRUE(CheckRegionLabel(fd_.get(), path_, label_).ok());
  EXPECT_EQ(*DeviceContents(path_), "the region of the termfs volume one");
}

TEST_F(RegionLabelTest, Check_RefusesAnotherVolumeAndSize) {
  ASSERT_TRUE(WriteRegionLabel(path_, label_).ok());
  EXPECT_EQ(CheckRegionLabel(fd_.get(), path_, {.pages = 16, .volume = "other"}).code(), EUCLEAN);
  EXPECT_EQ(CheckRegionLabel(fd_.get(), path_, {.pages = 17, .volume = "one"}).code(), EUCLEAN);
}

TEST_F(RegionLabelTest, Read_EveryDamagedByteIsNoticed) {
  ASSERT_TRUE(WriteRegionLabel(path_, label_).ok());
  for (off_t at = 0; at < 4096; at++) {
    Spoil(at);
    EXPECT_FALSE(ReadRegionLabel(fd_.get(), path_).ok()) << at;
    Spoil(at);
  }
  EXPECT_TRUE(ReadRegionLabel(fd_.get(), path_).ok());
  ASSERT_EQ(ftruncate(fd_.get(), 4095), 0);
  EXPECT_FALSE(ReadRegionLabel(fd_.get(), path_).ok());
}

TEST_F(RegionLabelTest, Write_ClearsWhatBeganThere) {
  ASSERT_EQ(pwrite(fd_.get(), "\x55\xaa", 2, 510), 2);
  ASSERT_TRUE(WriteRegionLabel(path_, label_).ok());
  char bytes[2] = {1, 1};
  ASSERT_EQ(pread(fd_.get(), bytes, 2, 510), 2);
  EXPECT_EQ(bytes[0] | bytes[1], 0);
  EXPECT_EQ(WriteRegionLabel(path_, {.pages = 1, .volume = std::string(48, 'x')}).code(), EINVAL);
}

TEST_F(RegionLabelTest, OpenDeviceFile_OneThatIsTooShortForItsStart) {
  ASSERT_EQ(ftruncate(fd_.get(), kRegionStart - 1), 0);
  EXPECT_EQ(OpenDeviceFile(path_, OpenMode::kBuffered, kRegionStart).status().code(), EUCLEAN);
}

}  // namespace
}  // namespace termfs::tlib::server
