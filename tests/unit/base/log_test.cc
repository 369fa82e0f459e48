// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace termfs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A log in a file of its own; afterwards the log goes to standard error again.
class LogTest : public ::testing::Test {
 protected:
  LogTest() : path_(::testing::TempDir() + "termfs_log_test." + std::to_string(getpid())) {}
  ~LogTest() override {
    EXPECT_TRUE(StartLog(LogLevel::kWarning).ok());
    std::filesystem::remove(path_);
  }

  std::string Written() const {
    std::ostringstream content;
    content << std::ifstream(path_).rdbuf();
    return content.str();
  }

  const std::string path_;
};

TEST_F(LogTest, Level_DropsWhatIsBelow) {
  ASSERT_TRUE(StartLog(LogLevel::kInfo, path_).ok());
  EXPECT_FALSE(LogEnabled(LogLevel::kDebug));
  EXPECT_TRUE(LogEnabled(LogLevel::kInfo));
  LOG_DEBUG("one {}", 1);
  LOG_INFO("two {}", 2);
  LOG_ERROR("three {}", 3);
  EXPECT_THAT(Written(), AllOf(Not(HasSubstr("one 1")), HasSubstr(" two 2\n"), HasSubstr(" three 3\n")));
}

TEST_F(LogTest, FullDisk_LinesThatAreMissingAreCounted) {
  std::filesystem::create_symlink("/dev/full", path_);
  ASSERT_TRUE(StartLog(LogLevel::kInfo, path_).ok());
  for (int i = 0; i < 3; ++i) {
    LOG_INFO("nowhere {}", i);
  }
  std::filesystem::remove(path_);
  ASSERT_TRUE(ReopenLog().ok());
  LOG_INFO("first");
  LOG_INFO("second");
  EXPECT_THAT(Written(), AllOf(HasSubstr(" 3 lines are missing here"), HasSubstr(" first\n"), HasSubstr(" second\n"),
                               Not(HasSubstr("nowhere"))));
}

TEST_F(LogTest, Time_HasItsZone) {
  const char* const former = std::getenv("TZ");
  const std::string before = former != nullptr ? former : "";
  ASSERT_EQ(setenv("TZ", "XYZ-05:30", 1), 0);
  tzset();
  ASSERT_TRUE(StartLog(LogLevel::kInfo, path_).ok());
  LOG_INFO("now");
  former != nullptr ? setenv("TZ", before.c_str(), 1) : unsetenv("TZ");
  tzset();
  EXPECT_THAT(Written(),
              ::testing::ContainsRegex("^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{3}[+]05:30 I "));
}

TEST_F(LogTest, Arguments_AreEvaluatedOnlyWhenLogged) {
  ASSERT_TRUE(StartLog(LogLevel::kError, path_).ok());
  int evaluated = 0;
  LOG_WARNING("{}", ++evaluated);
  EXPECT_EQ(evaluated, 0);
  LOG_ERROR("{}", ++evaluated);
  EXPECT_EQ(evaluated, 1);
}

TEST_F(LogTest, Text_IsNotFormattedAgain) {
  ASSERT_TRUE(StartLog(LogLevel::kInfo, path_).ok());
  LOG_INFO("name {}", "{} {0:x} %s %n");
  EXPECT_THAT(Written(), HasSubstr("name {} {0:x} %s %n\n"));
}

TEST_F(LogTest, File_IsAppendedTo) {
  ASSERT_TRUE(StartLog(LogLevel::kInfo, path_).ok());
  LOG_INFO("first");
  ASSERT_TRUE(StartLog(LogLevel::kInfo, path_).ok());
  LOG_INFO("second");
  EXPECT_THAT(Written(), AllOf(HasSubstr("first"), HasSubstr("second")));
}

TEST_F(LogTest, StandardError_IsUsedAgainWithoutAPath) {
  ASSERT_TRUE(StartLog(LogLevel::kInfo, path_).ok());
  ASSERT_TRUE(StartLog(LogLevel::kInfo).ok());
  LOG_INFO("to standard error");
  EXPECT_THAT(Written(), Not(HasSubstr("to standard error")));
}

TEST_F(LogTest, Name_IsInEveryLine) {
  ASSERT_TRUE(StartLog(LogLevel::kInfo, path_, "/mnt/100%v").ok());
  LOG_INFO("first");
  LOG_WARNING("second");
  EXPECT_THAT(Written(), AllOf(HasSubstr(" /mnt/100%v: first\n"), HasSubstr(" /mnt/100%v: second\n")));
}

TEST_F(LogTest, File_ThatCannotBeOpenedIsAnError) {
  const Status status = StartLog(LogLevel::kInfo, "/proc/nowhere/log");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.ToString(), HasSubstr("/proc/nowhere/log"));
}

// A symbolic link to the log's file, in a directory of its own.
class LogLinkTest : public LogTest {
 protected:
  LogLinkTest() : directory_(path_ + ".d"), link_(directory_ + "/log") {
    std::filesystem::create_directory(directory_);
    Let(0755);
    std::filesystem::create_symlink(path_, link_);
  }
  ~LogLinkTest() override {
    EXPECT_TRUE(StartLog(LogLevel::kWarning).ok());
    std::filesystem::remove_all(directory_);
  }
  void Let(mode_t mode) { ASSERT_EQ(chmod(directory_.c_str(), mode), 0); }

  const std::string directory_;
  const std::string link_;
};

TEST_F(LogLinkTest, IsRefused_WhereOthersMayWrite) {
  for (const mode_t mode : {0777, 0775}) {
    Let(mode);
    EXPECT_EQ(StartLog(LogLevel::kInfo, link_).code(), ELOOP) << mode;
    EXPECT_FALSE(std::filesystem::exists(path_));
    ASSERT_TRUE(StartLog(LogLevel::kInfo, directory_ + "/file").ok()) << "a file is none";
  }
}

TEST_F(LogLinkTest, OfAnotherUser_IsRefusedInASharedDirectory) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root gives files away";
  }
  Let(01777);
  ASSERT_TRUE(StartLog(LogLevel::kInfo, link_).ok()) << "one's own";
  EXPECT_TRUE(std::filesystem::remove(path_));
  ASSERT_EQ(lchown(link_.c_str(), 1000, 1000), 0);
  EXPECT_EQ(StartLog(LogLevel::kInfo, link_).code(), ELOOP);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(LogLinkTest, File_OfAnotherUserOrWithAnotherName_IsRefused) {
  const std::string file = directory_ + "/file";
  ASSERT_TRUE(StartLog(LogLevel::kInfo, file).ok());
  std::filesystem::create_hard_link(file, directory_ + "/other");
  EXPECT_EQ(StartLog(LogLevel::kInfo, file).code(), EPERM);
  std::filesystem::remove(directory_ + "/other");
  ASSERT_TRUE(StartLog(LogLevel::kInfo, file).ok());
  if (geteuid() == 0) {
    ASSERT_EQ(chown(file.c_str(), 1000, 1000), 0);
    EXPECT_EQ(StartLog(LogLevel::kInfo, file).code(), EPERM);
  }
}

TEST_F(LogTest, File_IsMadeForTheOwnerAndTheGroup) {
  const mode_t mask = umask(0);
  ASSERT_TRUE(StartLog(LogLevel::kInfo, path_).ok());
  struct stat found {};
  ASSERT_EQ(stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0640);
  std::filesystem::remove(path_);
  ASSERT_TRUE(ReopenLog().ok());
  ASSERT_EQ(stat(path_.c_str(), &found), 0);
  umask(mask);
  EXPECT_EQ(found.st_mode & 0777, 0640) << "after logrotate";
}

TEST_F(LogTest, Directories_AreMade) {
  const std::string directory = path_ + ".d";
  ASSERT_TRUE(StartLog(LogLevel::kInfo, directory + "/one/two/log").ok());
  EXPECT_TRUE(std::filesystem::exists(directory + "/one/two/log"));
  std::filesystem::remove_all(directory);
}

TEST_F(LogLinkTest, IsRefused_InADirectoryOfAnotherUser) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root gives files away";
  }
  ASSERT_EQ(chown(directory_.c_str(), 1000, 0), 0);
  EXPECT_EQ(StartLog(LogLevel::kInfo, link_).code(), EPERM);
  EXPECT_EQ(StartLog(LogLevel::kInfo, directory_ + "/file").code(), EPERM);
  EXPECT_EQ(StartLog(LogLevel::kInfo, directory_ + "/made/log").code(), EPERM);
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/made"));
}

TEST_F(LogLinkTest, IsFollowed_WhereNobodyElseMayWrite) {
  ASSERT_TRUE(StartLog(LogLevel::kInfo, link_).ok());
  LOG_INFO("first");
  EXPECT_THAT(Written(), HasSubstr("first"));
}

TEST_F(LogLinkTest, IsRefusedAsWell_WhenTheLogIsReopened) {
  ASSERT_TRUE(StartLog(LogLevel::kInfo, directory_ + "/file").ok());
  LOG_INFO("first");
  std::filesystem::rename(directory_ + "/file", directory_ + "/old");
  std::filesystem::rename(link_, directory_ + "/file");
  Let(0777);
  EXPECT_EQ(ReopenLog().code(), ELOOP);
  EXPECT_FALSE(std::filesystem::exists(path_));
  LOG_INFO("second");
  std::ostringstream old;
  old << std::ifstream(directory_ + "/old").rdbuf();
  EXPECT_THAT(old.str(), AllOf(HasSubstr("first"), HasSubstr("second")));
  Let(0755);
  EXPECT_TRUE(ReopenLog().ok());
  LOG_INFO("third");
  EXPECT_THAT(Written(), HasSubstr("third"));
}

TEST_F(LogLinkTest, APipeInThePlaceOfTheFile_IsNotWaitedFor) {
  ASSERT_EQ(mkfifo((directory_ + "/pipe").c_str(), 0600), 0);
  EXPECT_EQ(StartLog(LogLevel::kInfo, directory_ + "/pipe").code(), ENXIO);
}

TEST_F(LogTest, Reopen_IsForWhoHasRenamedTheFile) {
  ASSERT_TRUE(StartLog(LogLevel::kInfo, path_).ok());
  LOG_INFO("first");
  const std::string old = path_ + ".1";
  std::filesystem::rename(path_, old);
  LOG_INFO("second");
  EXPECT_FALSE(std::filesystem::exists(path_));
  ASSERT_TRUE(ReopenLog().ok());
  LOG_INFO("third");
  EXPECT_THAT(Written(), AllOf(HasSubstr("third"), Not(HasSubstr("second"))));
  std::filesystem::remove(old);
  ASSERT_TRUE(StartLog(LogLevel::kWarning).ok());
  EXPECT_TRUE(ReopenLog().ok()) << "nothing to open";
}

TEST_F(LogTest, Reopen_WhileOthersLog_LosesNoLine) {
  constexpr int kLines = 2000;
  ASSERT_TRUE(StartLog(LogLevel::kInfo, path_).ok());
  std::thread other([] {
    for (int i = 0; i < kLines; i++) {
      LOG_INFO("line");
    }
  });
  for (int i = 0; i < 100; i++) {
    EXPECT_TRUE(ReopenLog().ok());
  }
  other.join();
  const std::string written = Written();
  EXPECT_EQ(std::count(written.begin(), written.end(), '\n'), kLines);
}

}  // namespace
}  // namespace termfs
