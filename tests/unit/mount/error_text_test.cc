// SPDX-License-Identifier: Apache-2.0
#include "mount/error_text.h"

#include <gtest/gtest.h>

namespace termfs::mount {
namespace {

TEST(ErrorText, HasTheErrnosTextWhereItSaysWhy) {
  EXPECT_EQ(ErrorText(Status::Error(EACCES, "open /v/lock")), "open /v/lock: Permission denied");
  EXPECT_EQ(ErrorText(Status::Error(EIO, "both are lost; take a backup: read /v/written")),
            "both are lost; take a backup: read /v/written: Input/output error");
}

TEST(ErrorText, LeavesOutWhatSaysNothing) {
  EXPECT_EQ(ErrorText(Status::Error(EUCLEAN, "/v/region is another volume's")), "/v/region is another volume's");
  EXPECT_EQ(ErrorText(Status::Error(ENOENT, "no server runs for /v; start one")), "no server runs for /v; start one");
  EXPECT_EQ(ErrorText(Status::Error(EINVAL, "t.toml line 3: no setting; a line is KEY = VALUE")),
            "t.toml line 3: no setting; a line is KEY = VALUE");
}

}  // namespace
}  // namespace termfs::mount
