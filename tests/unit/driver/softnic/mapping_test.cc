// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/mapping.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "base/page.h"
#include "base/unnamed_file.h"
#include "driver/softnic/shared_object.h"

namespace termfs::driver::softnic {
namespace {

using ::testing::HasSubstr;

constexpr uid_t kStranger = 65534;

UniqueFd Memfd(int seals) {
  UniqueFd fd(memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), kPageSize), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

// On a tmpfs, which seals no files.
UniqueFd FileInMemory(mode_t mode) {
  UniqueFd fd = OpenUnnamed("/dev/shm/termfs_mapping_test", mode).value();
  EXPECT_EQ(fchmod(fd.get(), mode), 0);
  EXPECT_EQ(ftruncate(fd.get(), kPageSize), 0);
  return fd;
}

int CodeOf(const UniqueFd& fd, MappedKind kind) {
  MappingCache cache;
  return cache.Map(fd, kPageSize, kind).status().code();
}

TEST(MappingCache, WhatMayShrink_IsRefused) {
  for (const MappedKind kind : {MappedKind::kSealed, MappedKind::kSealedToWrite}) {
    EXPECT_EQ(CodeOf(Memfd(F_SEAL_SHRINK), kind), 0);
    EXPECT_EQ(CodeOf(Memfd(F_SEAL_GROW), kind), EPROTO);
    EXPECT_EQ(CodeOf(FileInMemory(0600), kind), EPROTO) << "a file of the same user";
  }
  EXPECT_EQ(CodeOf(Memfd(F_SEAL_SHRINK), MappedKind::kRegion), 0);
  EXPECT_EQ(CodeOf(FileInMemory(0400), MappedKind::kRegion), 0);
  EXPECT_EQ(CodeOf(FileInMemory(0644), MappedKind::kRegion), EPROTO) << "others could open it";
}

TEST(MappingCache, OfAnotherUser_IsRefused) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root gives files away";
  }
  const UniqueFd sealed = Memfd(F_SEAL_SHRINK | F_SEAL_GROW);
  const UniqueFd file = FileInMemory(0400);
  for (const UniqueFd* fd : {&sealed, &file}) {
    ASSERT_EQ(fchown(fd->get(), kStranger, kStranger), 0);
    EXPECT_EQ(CodeOf(*fd, MappedKind::kRegion), EPROTO);
    ASSERT_EQ(seteuid(kStranger), 0);
    EXPECT_EQ(CodeOf(*fd, MappedKind::kRegion), 0) << "the user's own";
    ASSERT_EQ(seteuid(0), 0);
    ASSERT_EQ(fchown(fd->get(), 0, 0), 0);
    ASSERT_EQ(seteuid(kStranger), 0);
    EXPECT_EQ(CodeOf(*fd, MappedKind::kRegion), 0) << "root's";
    ASSERT_EQ(seteuid(0), 0);
  }
  EXPECT_EQ(CodeOf(sealed, MappedKind::kSealed), 0);
  ASSERT_EQ(fchown(sealed.get(), kStranger, kStranger), 0);
  EXPECT_EQ(CodeOf(sealed, MappedKind::kSealed), EPROTO);
  EXPECT_EQ(CodeOf(sealed, MappedKind::kSealedToWrite), EPROTO);
}

TEST(SharedObject, ResumedFileThatIsNotOursAlone_IsRefused) {
  const std::string path = "/dev/shm/termfs_mapping_test." + std::to_string(getpid());
  const std::string other = path + ".other";
  SharedObjectOptions options;
  options.name = "kept";
  options.bytes = kPageSize;
  options.path = path;
  const auto made = SharedObject::Create(options).value();
  ASSERT_TRUE(made->Keep().ok());
  options.resume = true;
  EXPECT_TRUE(SharedObject::Create(options).ok());
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  EXPECT_EQ(SharedObject::Create(options).status().code(), EUCLEAN);
  ASSERT_EQ(chmod(path.c_str(), 0400), 0);
  ASSERT_EQ(link(path.c_str(), other.c_str()), 0);
  EXPECT_THAT(SharedObject::Create(options).status().ToString(), HasSubstr(path));
  EXPECT_EQ(unlink(other.c_str()), 0);
  if (geteuid() == 0) {
    ASSERT_EQ(chown(path.c_str(), kStranger, kStranger), 0);
    EXPECT_EQ(SharedObject::Create(options).status().code(), EUCLEAN);
  }
  EXPECT_EQ(unlink(path.c_str()), 0);
}

}  // namespace
}  // namespace termfs::driver::softnic
