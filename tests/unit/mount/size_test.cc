// SPDX-License-Identifier: Apache-2.0
#include "mount/size.h"

#include <gtest/gtest.h>

namespace termfs::mount {
namespace {

TEST(ParseSize, AcceptsWhatPeopleWrite) {
  const std::pair<const char*, uint64_t> cases[] = {
      {"0", 0},
      {"4096", 4096},
      {"4096B", 4096},
      {"8G", uint64_t{8} << 30},
      {"8g", uint64_t{8} << 30},
      {"512KiB", 512 << 10},
      {"10 MB", 10 << 20},
      {"1.5T", uint64_t{3} << 39},
      {"0.5K", 512},
      {"7E", uint64_t{7} << 60},
  };
  for (const auto& [text, bytes] : cases) {
    const Result<uint64_t> parsed = ParseSize(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status().ToString();
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(ParseSize, RefusesWhatIsNoSize) {
  for (const char* text : {"",
                           " ",
                           "-1",
                           "-1G",
                           "+1G",
                           "G",
                           "1X",
                           "1GG",
                           "1Gi",
                           "1.G",
                           ".5G",
                           "1.5",
                           "1,5G",
                           "0x10",
                           "1e3",
                           "1 G ",
                           " 1G",
                           "1  G",
                           "8E",
                           "9E",
                           "18446744073709551615",
                           "18446744073709551616",
                           "99999999999T",
                           "1.0000000000001G",
                           "nan",
                           "inf"}) {
    const Result<uint64_t> parsed = ParseSize(text);
    EXPECT_EQ(parsed.status().code(), EINVAL) << "'" << text << "'";
  }
}

TEST(ParseRatio, KeepsTheRange) {
  EXPECT_EQ(*ParseRatio("0.5"), 0.5);
  EXPECT_EQ(*ParseRatio("1"), 1.0);
  EXPECT_EQ(*ParseRatio("0.01"), 0.01);
  for (const char* text : {"", "0", "0.009", "1.01", "-0.5", "nan", "inf", "0.5x", " 0.5", "half"}) {
    EXPECT_EQ(ParseRatio(text).status().code(), EINVAL) << "'" << text << "'";
  }
}

TEST(ParseCount, KeepsTheRange) {
  EXPECT_EQ(*ParseCount("16", 1, 256), 16U);
  for (const char* text : {"", "0", "257", "-1", "+1", "1.0", "1 ", "99999999999999999999"}) {
    EXPECT_EQ(ParseCount(text, 1, 256).status().code(), EINVAL) << "'" << text << "'";
  }
}

TEST(FormatSize, ShowsThreeDigits) {
  EXPECT_EQ(FormatSize(0), "0 B");
  EXPECT_EQ(FormatSize(1023), "1023 B");
  EXPECT_EQ(FormatSize(1024), "1.00 KiB");
  EXPECT_EQ(FormatSize(uint64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(FormatSize(uint64_t{100} << 20), "100 MiB");
  EXPECT_EQ(FormatSize(UINT64_MAX), "16.0 EiB");
}

TEST(FormatCount, IsOneOrMany) {
  EXPECT_EQ(FormatCount(0, "directory", "directories"), "0 directories");
  EXPECT_EQ(FormatCount(1, "directory", "directories"), "1 directory");
  EXPECT_EQ(FormatCount(2, "directory", "directories"), "2 directories");
}

}  // namespace
}  // namespace termfs::mount
