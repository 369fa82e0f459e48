// SPDX-License-Identifier: Apache-2.0
#include "base/unnamed_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace termfs {
namespace {

class UnnamedFile : public testing::Test {
 protected:
  UnnamedFile() {
    std::string name = "/dev/shm/termfs-unnamed-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~UnnamedFile() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(UnnamedFile, IsNowhere_UntilItIsNamed) {
  const auto fd = OpenUnnamed(folder_ + "/a", 0400);
  ASSERT_TRUE(fd.ok()) << fd.status().ToString();
  ASSERT_EQ(write(fd->get(), "bytes", 5), 5);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  ASSERT_TRUE(NameFile(*fd, folder_ + "/a").ok());
  std::string read;
  std::ifstream(folder_ + "/a") >> read;
  EXPECT_EQ(read, "bytes");
}

TEST_F(UnnamedFile, ReplacesNothing) {
  std::ofstream(folder_ + "/a") << "old";
  const auto fd = OpenUnnamed(folder_ + "/a", 0400);
  ASSERT_TRUE(fd.ok()) << fd.status().ToString();
  EXPECT_EQ(NameFile(*fd, folder_ + "/a").code(), EEXIST);
}

TEST_F(UnnamedFile, NeedsItsFolder) { EXPECT_EQ(OpenUnnamed(folder_ + "/none/a", 0400).status().code(), ENOENT); }

}  // namespace
}  // namespace termfs
