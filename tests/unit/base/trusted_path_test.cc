// SPDX-License-Identifier: Apache-2.0
#include "base/trusted_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace termfs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uid_t kStranger = 65534;
constexpr char kMayBeLinks[] = " region ";

// A directory with another in it; both are trusted as long as a test does nothing to them.
class TrustedPathTest : public ::testing::Test {
 protected:
  TrustedPathTest() {
    std::string made = ::testing::TempDir() + "termfs_trusted.XXXXXX";
    EXPECT_NE(mkdtemp(made.data()), nullptr);
    top_ = std::filesystem::canonical(made).string();
    inner_ = top_ + "/inner";
    std::filesystem::create_directory(inner_);
    Let(top_, 0755);
    Let(inner_, 0755);
  }
  ~TrustedPathTest() override { std::filesystem::remove_all(top_); }

  static void Let(const std::string& path, mode_t mode) { ASSERT_EQ(chmod(path.c_str(), mode), 0); }
  static void Make(const std::string& path, mode_t mode = 0644) {
    std::ofstream(path) << "text";
    Let(path, mode);
  }
  static void Give(const std::string& path, uid_t user = kStranger, gid_t group = kStranger) {
    ASSERT_EQ(lchown(path.c_str(), user, group), 0);
  }

  std::string top_;
  std::string inner_;
};

TEST_F(TrustedPathTest, Directory_ComesBackWithoutDotsAndLinks) {
  std::filesystem::create_symlink("inner", top_ + "/link");
  std::filesystem::create_symlink(top_ + "/link", top_ + "/second");
  for (const char* way : {"/inner", "//inner/", "/./inner/.", "/link", "/inner/../link", "/second"}) {
    const Result<std::string> path = TrustedDirectory(top_ + way);
    ASSERT_TRUE(path.ok()) << way << ": " << path.status().ToString();
    EXPECT_EQ(*path, inner_) << way;
  }
  EXPECT_EQ(TrustedDirectory(top_ + "/none").status().code(), ENOENT);
  EXPECT_EQ(TrustedDirectory("").status().code(), ENOENT);
  EXPECT_EQ(TrustedDirectory("/").value(), "/");
  Make(top_ + "/file");
  EXPECT_EQ(TrustedDirectory(top_ + "/file").status().code(), ENOTDIR);
  EXPECT_EQ(TrustedDirectory(top_ + "/file/inner").status().code(), ENOTDIR);
  std::filesystem::create_symlink("loop", top_ + "/loop");
  EXPECT_EQ(TrustedDirectory(top_ + "/loop").status().code(), ELOOP);
}

TEST_F(TrustedPathTest, Directory_ThatOthersMayWriteToIsRefused) {
  for (const mode_t mode : {0777, 0757, 0775, 01777}) {
    Let(inner_, mode);
    const Status refused = TrustedDirectory(inner_).status();
    EXPECT_EQ(refused.code(), EPERM) << mode;
    EXPECT_THAT(refused.ToString(), AllOf(HasSubstr(inner_), HasSubstr("of user "), HasSubstr("chmod go-w")));
  }
  EXPECT_TRUE(TrustedDirectory(inner_, LastDirectory::kSticky).ok()) << "what is in it is looked at";
  Let(inner_, 0777);
  EXPECT_FALSE(TrustedDirectory(inner_, LastDirectory::kSticky).ok());
  EXPECT_TRUE(TrustedDirectory(inner_, LastDirectory::kShared).ok());
  Let(top_, 0777);
  EXPECT_FALSE(TrustedDirectory(inner_, LastDirectory::kShared).ok()) << "only the last";
}

TEST_F(TrustedPathTest, Parents_AreLookedAt) {
  Let(top_, 0777);
  EXPECT_EQ(TrustedDirectory(inner_).status().code(), EPERM);
  Let(top_, 01777);
  EXPECT_TRUE(TrustedDirectory(inner_).ok()) << "only its owner renames what is in a sticky directory";
}

TEST_F(TrustedPathTest, OfAnotherUser_IsRefused) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root gives files away";
  }
  std::filesystem::create_symlink(inner_, top_ + "/link");
  Let(top_, 01777);
  Give(top_ + "/link");
  EXPECT_THAT(TrustedDirectory(top_ + "/link").status().ToString(),
              AllOf(HasSubstr(top_ + "/link belongs to user 65534"), HasSubstr("chown")));
  Make(inner_ + "/file");
  Give(inner_ + "/file");
  EXPECT_EQ(TrustedFile(inner_ + "/file").status().code(), EPERM);
  Give(inner_);
  EXPECT_EQ(TrustedDirectory(inner_).status().code(), EPERM);
  EXPECT_EQ(TrustedFile(inner_ + "/none").status().code(), EPERM);
  EXPECT_EQ(TrustedDirectory(inner_ + "/..").status().code(), EPERM) << "the user may move it elsewhere";
}

TEST_F(TrustedPathTest, PrivateGroup_CountsAsItsUser_ButNotRoots) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root gives files away";
  }
  Let(inner_, 0775);
  EXPECT_FALSE(TrustedDirectory(inner_).ok()) << "others may be in root's group";
  Let(top_, 0755);
  Give(inner_, 1000, 1000);
  ASSERT_EQ(seteuid(1000), 0);
  const Status own = TrustedDirectory(inner_).status();
  ASSERT_EQ(seteuid(0), 0);
  EXPECT_TRUE(own.ok()) << own.ToString();
  Give(inner_, 1000, 100);
  Let(inner_, 0775);
  ASSERT_EQ(seteuid(1000), 0);
  const Status shared = TrustedDirectory(inner_).status();
  ASSERT_EQ(seteuid(0), 0);
  EXPECT_EQ(shared.code(), EPERM);
  EXPECT_THAT(shared.ToString(), HasSubstr("group 100"));
}

TEST_F(TrustedPathTest, File_MayBeALinkOrMissing) {
  Make(inner_ + "/file");
  std::filesystem::create_symlink("inner/file", top_ + "/link");
  EXPECT_EQ(TrustedFile(top_ + "/link").value(), inner_ + "/file");
  EXPECT_EQ(TrustedFile(top_ + "/none").value(), top_ + "/none");
  EXPECT_EQ(TrustedFile("/dev/null").value(), "/dev/null") << "a device is what its path says";
  Let(inner_ + "/file", 0666);
  EXPECT_EQ(TrustedFile(top_ + "/link").status().code(), EPERM);
}

TEST_F(TrustedPathTest, Contents_AreLookedAtDownToTheLast) {
  Make(top_ + "/file");
  Make(inner_ + "/table");
  std::filesystem::create_symlink(inner_ + "/table", top_ + "/region");
  EXPECT_TRUE(CheckContents(top_, kMayBeLinks).ok());
  Let(inner_ + "/table", 0664);
  EXPECT_THAT(CheckContents(top_, "").ToString(), HasSubstr(top_));
  EXPECT_EQ(CheckContents(top_, kMayBeLinks).code(), EPERM);
  Let(inner_ + "/table", 0644);
  std::filesystem::create_symlink("table", inner_ + "/region");
  EXPECT_THAT(CheckContents(top_, kMayBeLinks).ToString(), HasSubstr(inner_ + "/region, of user")) << "not below";
  std::filesystem::remove(inner_ + "/region");
  std::filesystem::create_symlink("file", top_ + "/epoch");
  EXPECT_THAT(CheckContents(top_, kMayBeLinks).ToString(), HasSubstr("is a symbolic link"));
}

TEST_F(TrustedPathTest, Contents_OfALinkedDirectoryAreLookedAt) {
  Make(inner_ + "/table", 0666);
  const std::string volume = top_ + "/volume";
  std::filesystem::create_directory(volume);
  Let(volume, 0755);
  std::filesystem::create_symlink(inner_, volume + "/meta");
  EXPECT_EQ(CheckContents(volume, " meta ").code(), EPERM);
  Let(inner_ + "/table", 0644);
  EXPECT_TRUE(CheckContents(volume, " meta ").ok());
}

TEST_F(TrustedPathTest, Contents_OfAnotherUserAreRefused) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root gives files away";
  }
  Make(inner_ + "/table");
  Give(inner_ + "/table");
  EXPECT_THAT(CheckContents(top_, "").ToString(), HasSubstr(inner_ + "/table belongs to user 65534"));
  Give(inner_ + "/table", 0, 0);
  std::filesystem::create_symlink(inner_ + "/table", top_ + "/region");
  EXPECT_TRUE(CheckContents(top_, kMayBeLinks).ok());
  Give(top_ + "/region");
  EXPECT_EQ(CheckContents(top_, kMayBeLinks).code(), EPERM) << "the link is another user's";
}

}  // namespace
}  // namespace termfs
