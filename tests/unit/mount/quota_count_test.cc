// SPDX-License-Identifier: Apache-2.0
#include "mount/quota_count.h"

#include <gtest/gtest.h>

namespace termfs::mount {
namespace {

using fs::client::QuotaStatus;

constexpr std::chrono::milliseconds kPatience{300};

QuotaStatus Counting(const std::string& failure) {
  QuotaStatus quota;
  quota.counting = true;
  quota.failure = failure;
  return quota;
}

TEST(AwaitCount, EndsWithWhyItFails) {
  int looks = 0;
  const auto quota = AwaitCount(
      [&]() -> Result<QuotaStatus> {
        return ++looks < 100 ? Counting("damaged") : QuotaStatus{};  // in time for who never gives up
      },
      kPatience);
  EXPECT_EQ(quota.status().code(), EIO);
  EXPECT_NE(quota.status().message().find("damaged"), std::string::npos) << quota.status().ToString();
}

TEST(AwaitCount, WaitsForOneThatGoesOn) {
  int looks = 0;
  const auto quota = AwaitCount(
      [&]() -> Result<QuotaStatus> {
        ++looks;
        QuotaStatus quota = Counting(looks % 2 == 0 ? "busy" : "");
        quota.bytes = 7;
        quota.counting = looks < 12;
        return quota;
      },
      kPatience);
  ASSERT_TRUE(quota.ok()) << quota.status().ToString();
  EXPECT_EQ(quota->bytes, 7u);
  EXPECT_EQ(looks, 12);
}

TEST(AwaitCount, PassesOnWhatLookingFailsWith) {
  const auto quota = AwaitCount([]() -> Result<QuotaStatus> { return Status::Error(ENOTCONN, "gone"); }, kPatience);
  EXPECT_EQ(quota.status().code(), ENOTCONN);
}

}  // namespace
}  // namespace termfs::mount
