// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

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

TEST_F(LogTest, Link_IsFollowedOrRefused) {
  const std::string link = path_ + ".link";
  std::filesystem::create_symlink(path_, link);
  EXPECT_EQ(StartLog(LogLevel::kInfo, link, "", LogLink::kRefused).code(), ELOOP);
  EXPECT_FALSE(std::filesystem::exists(path_));
  ASSERT_TRUE(StartLog(LogLevel::kInfo, link).ok());
  LOG_INFO("first");
  ASSERT_TRUE(StartLog(LogLevel::kInfo, path_, "", LogLink::kRefused).ok());
  LOG_INFO("second");
  EXPECT_THAT(Written(), AllOf(HasSubstr("first"), HasSubstr("second")));
  std::filesystem::remove(link);
}

}  // namespace
}  // namespace termfs
