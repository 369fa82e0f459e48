// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include "fs/server/volume.h"
#include "metadata/keys.h"
#include "metadata/rocksdb_store.h"
#include "mount/command.h"

namespace termfs::mount {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// What `termfs fsck` prints of a volume with so many damaged inodes.
std::string Printed(uint64_t damaged, bool json) {
  std::string directory = testing::TempDir() + "termfs_fsck_XXXXXX";
  EXPECT_NE(mkdtemp(directory.data()), nullptr);
  fs::server::FormatOptions options;
  options.settings.capacity_bytes = uint64_t{16} << 20;
  EXPECT_TRUE(fs::server::FormatVolume(directory, options).ok());
  {
    const auto store = metadata::OpenRocksDb(directory + "/meta");
    EXPECT_TRUE(store.ok());
    EXPECT_TRUE(metadata::Retry(**store, [&](metadata::Transaction& transaction) -> Status {
                  for (uint64_t i = 0; i < damaged; ++i) {
                    RETURN_IF_ERROR(transaction.Put(metadata::InodeKey(1000 + i), "damaged"));
                  }
                  return Status::Ok();
                }).ok());
    EXPECT_TRUE((*store)->SyncWal().ok());
  }
  testing::internal::CaptureStdout();
  EXPECT_EQ(RunFsck({.directory = directory, .repair = false, .json = json}), kExitFailed);
  std::string printed = testing::internal::GetCapturedStdout();
  std::filesystem::remove_all(directory);
  return printed;
}

TEST(Fsck, ProblemsBeyondThoseShown_AreCounted) {
  const std::string few = Printed(3, false);
  EXPECT_THAT(few, AllOf(HasSubstr("problem: inode 1002: damaged record"), HasSubstr("in use: 3 problems\n")));
  const std::string many = Printed(1500, false);
  EXPECT_THAT(many, HasSubstr("in use: 1500 problems, the first 1000 shown\n"));
  EXPECT_EQ(std::count(many.begin(), many.end(), '\n'), 1001);
  EXPECT_THAT(Printed(1500, true), HasSubstr("\"problem_count\":1500"));
}

}  // namespace
}  // namespace termfs::mount
