// SPDX-License-Identifier: Apache-2.0
#include "mount/cpu_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace termfs::mount {
namespace {

using testing::ElementsAre;

TEST(ParseCpuList, TakesNumbersAndRanges) {
  EXPECT_THAT(*ParseCpuList("0\n"), ElementsAre(0U));
  EXPECT_THAT(*ParseCpuList("0-3"), ElementsAre(0U, 1U, 2U, 3U));
  EXPECT_THAT(*ParseCpuList("1,4-5,9\n"), ElementsAre(1U, 4U, 5U, 9U));
}

TEST(ParseCpuList, RefusesEverythingElse) {
  for (const char* text : {"", "\n", "a", "1-", "-1", "1,", "3-2", "2,1", "1,1", "1 2", "99999999", "0-99999999"}) {
    EXPECT_EQ(ParseCpuList(text).status().code(), EPROTO) << text;
  }
}

TEST(ReadCpuList, FindsThisMachines) {
  EXPECT_FALSE(ReadCpuList("/sys/devices/system/cpu/possible")->empty());
  EXPECT_FALSE(ReadCpuList("/nonexistent").ok());
}

}  // namespace
}  // namespace termfs::mount
