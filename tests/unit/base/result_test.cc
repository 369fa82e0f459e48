// SPDX-License-Identifier: Apache-2.0
#include "base/result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace termfs {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Status FailIf(bool fail) {
  RETURN_IF_ERROR(fail ? Status::Error(ENOENT, "open the file") : Status::Ok());
  return Status::Error(EEXIST, "came to the end");
}

Result<std::unique_ptr<int>> MakeInt(int value) {
  if (value < 0) {
    return Status::Error(ERANGE, "make a natural number");
  }
  return std::make_unique<int>(value);
}

Result<int> Sum(int a, int b) {
  ASSIGN_OR_RETURN(const auto x, MakeInt(a));
  ASSIGN_OR_RETURN(const auto y, MakeInt(b));
  return *x + *y;
}

TEST(Status, Default_IsOk) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), 0);
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(status.ToString(), "ok");
  EXPECT_EQ(sizeof(status), sizeof(void*));
}

TEST(Status, Error_KeepsCodeAndText) {
  const Status status = Status::Error(ENOSPC, "allocate an extent");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), ENOSPC);
  EXPECT_EQ(status.message(), "allocate an extent");
  EXPECT_EQ(status.ToString(), "allocate an extent") << "the errno is for programs";
}

TEST(Status, ToString_SaysTheReasonOnce) {
  EXPECT_EQ(Status::Errno(ENOENT, "read a").ToString(), "read a: No such file or directory");
  EXPECT_EQ(Status::Errno(ENOENT, "read a: No such file or directory").ToString(), "read a: No such file or directory");
  EXPECT_EQ(Status::Errno(ENOENT, "no reply (read a: No such file or directory)").ToString(),
            "no reply (read a: No such file or directory)");
  EXPECT_EQ(Status::Errno(EIO, "read a: No such file or directory").ToString(),
            "read a: No such file or directory: Input/output error");
  EXPECT_EQ(Status(Status::Errno(EACCES, "open b")).WithContext("start").ToString(),
            "start: open b: Permission denied");
}

TEST(Status, ToString_EndsInAdvice) {
  EXPECT_EQ(Status::Errno(ENOENT, "no server runs for /v; start one").ToString(), "no server runs for /v; start one");
  EXPECT_EQ(Status::Errno(EIO, "both are lost; take a backup: read /v/written").ToString(),
            "both are lost; take a backup: read /v/written: Input/output error");
}

TEST(Status, ToDebugString_NamesTheCallersLine) {
  const int line = __LINE__ + 1;
  const Status status = Status::Error(EIO, "read");
  EXPECT_THAT(status.ToDebugString(), HasSubstr("result_test.cc:" + std::to_string(line)));
}

TEST(Status, ErrnoStatus_TakesErrnoAndTheCallersLine) {
  errno = EACCES;
  const int line = __LINE__ + 1;
  const Status status = ErrnoStatus("open");
  EXPECT_EQ(status.code(), EACCES);
  EXPECT_THAT(status.ToDebugString(), EndsWith("result_test.cc:" + std::to_string(line) + ")"));
}

TEST(Status, ErrnoStatus_WithoutErrnoIsEio) {
  errno = 0;
  EXPECT_EQ(ErrnoStatus("open").code(), EIO);
}

TEST(Status, WithContext_PutsItInFront) {
  EXPECT_EQ(Status::Error(EIO, "read").WithContext("start").message(), "start: read");
  EXPECT_EQ(Status::Error(EIO, "read").WithContext("start").code(), EIO);
  EXPECT_TRUE(Status::Ok().WithContext("start").ok());
}

TEST(Status, Copy_IsIndependent) {
  Status first = Status::Error(EIO, "read");
  const Status copy = first;
  first = std::move(first).WithContext("changed");
  EXPECT_EQ(copy.message(), "read");
  first = Status::Ok();
  EXPECT_FALSE(copy.ok());
}

TEST(Status, ReturnIfError_ReturnsOnlyErrors) {
  EXPECT_EQ(FailIf(true).code(), ENOENT);
  EXPECT_EQ(FailIf(false).code(), EEXIST);
}

TEST(StatusDeathTest, Error_CodeZeroAborts) {
  EXPECT_DEATH((void)Status::Error(0, "nothing"), "check failed: code > 0");
}

TEST(Result, Value_MovesOut) {
  Result<std::unique_ptr<int>> result = MakeInt(7);
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result.status().ok());
  const std::unique_ptr<int> taken = *std::move(result);
  EXPECT_EQ(*taken, 7);
}

TEST(Result, Status_IsTheError) {
  const Result<std::unique_ptr<int>> result = MakeInt(-1);
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), ERANGE);
  EXPECT_THAT(result.status().ToString(), StartsWith("make a natural number"));
}

TEST(Result, AssignOrReturn_StopsAtTheFirstError) {
  EXPECT_EQ(Sum(1, 2).value(), 3);
  EXPECT_EQ(Sum(1, -2).status().code(), ERANGE);
}

TEST(ResultDeathTest, Value_OfAnErrorAborts) {
  const Result<int> result = Status::Error(EIO, "read");
  EXPECT_DEATH((void)result.value(), "check failed: ok");
}

TEST(ResultDeathTest, Construct_FromOkStatusAborts) { EXPECT_DEATH((void)Result<int>(Status::Ok()), "check failed"); }

}  // namespace
}  // namespace termfs
