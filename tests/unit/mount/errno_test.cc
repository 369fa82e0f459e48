// SPDX-License-Identifier: Apache-2.0
#include "mount/errno.h"

#include <gtest/gtest.h>

namespace termfs::mount {
namespace {

TEST(ToErrno, PassesOnWhatSystemCallsReturn) {
  EXPECT_EQ(ToErrno(Status::Ok()), 0);
  for (const int code : {ENOENT, ENOSPC, EIO, ENOTCONN, ETIMEDOUT, ESTALE, EOPNOTSUPP, EDQUOT, EUCLEAN}) {
    EXPECT_EQ(ToErrno(Status::Error(code, "x")), code);
  }
}

TEST(ToErrno, MapsWhatTheKernelWouldMisunderstand) {
  EXPECT_EQ(ToErrno(Status::Error(ENOSYS, "x")), EOPNOTSUPP);
  EXPECT_EQ(ToErrno(Status::Error(EAGAIN, "x")), EIO);
  EXPECT_EQ(ToErrno(Status::Error(EPIPE, "x")), ENOTCONN);
  EXPECT_EQ(ToErrno(Status::Error(ECONNRESET, "x")), ENOTCONN);
  EXPECT_EQ(ToErrno(Status::Error(512, "ERESTARTSYS")), EIO);
  EXPECT_EQ(ToErrno(Status::Error(100000, "x")), EIO);
}

}  // namespace
}  // namespace termfs::mount
