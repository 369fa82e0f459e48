// SPDX-License-Identifier: Apache-2.0
#include "driver/nic.h"

#include <gtest/gtest.h>

namespace termfs::driver {
namespace {

TEST(RegionKind, ParseRegionKind_ReadsWhatToStringWrites) {
  for (int i = 0; i <= static_cast<int>(RegionKind::kTerm); i++) {
    const auto kind = static_cast<RegionKind>(i);
    const Result<RegionKind> parsed = ParseRegionKind(ToString(kind));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, kind);
  }
}

TEST(RegionKind, ParseRegionKind_UnknownNamesTheChoices) {
  const Result<RegionKind> parsed = ParseRegionKind("pinn");
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().code(), EINVAL);
  EXPECT_NE(parsed.status().message().find("pin, odp, rpc, rpc_buffer, rpc_direct, rpc_tiering, term"),
            std::string_view::npos);
}

TEST(WcStatus, ToString_IsTheVerbsName) {
  EXPECT_EQ(ToString(WcStatus::kSuccess), "IBV_WC_SUCCESS");
  EXPECT_EQ(ToString(WcStatus::kRnrRetryExcErr), "IBV_WC_RNR_RETRY_EXC_ERR");
}

}  // namespace
}  // namespace termfs::driver
