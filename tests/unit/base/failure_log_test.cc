// SPDX-License-Identifier: Apache-2.0
#include "base/failure_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "tests/fakes/manual_clock.h"

namespace termfs {
namespace {

// What two reports logged, in lines without what is in front of them.
std::string Logged(const std::function<void()>& work) {
  testing::internal::CaptureStderr();
  work();
  const std::string text = testing::internal::GetCapturedStderr();
  return std::regex_replace(text, std::regex("[^ \n]+ E [0-9]+ "), "");
}

TEST(FailureLog, Report_OneLineAMinuteForEachKindAndACountOfTheOthers) {
  fakes::ManualClock clock;
  FailureLog failures(clock);
  EXPECT_EQ(Logged([&] {
              for (int i = 0; i < 5; ++i) {
                failures.Report("read", [&] { return fmt::format("read {}", i); });
              }
              failures.Report("write", [] { return std::string("write"); });
            }),
            "read 0\nwrite\n");
  clock.Advance(FailureLog::kInterval - std::chrono::milliseconds(1));
  EXPECT_EQ(Logged([&] { failures.Report("read", [] { return std::string("early"); }); }), "");
  clock.Advance(std::chrono::milliseconds(1));
  EXPECT_EQ(Logged([&] { failures.Report("read", [] { return std::string("read"); }); }),
            "read (5 more of this kind since the last such line)\n");
}

TEST(FailureLog, Report_AStatusWithWhatItIsAbout) {
  FailureLog failures;
  const std::string line = Logged([&] { failures.Report("closing inode", 7, Status::Errno(EIO, "the store")); });
  EXPECT_THAT(line, testing::StartsWith("closing inode 7: the store: Input/output error"));
}

}  // namespace
}  // namespace termfs
