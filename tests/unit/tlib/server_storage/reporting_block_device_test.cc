// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/reporting_block_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/fakes/fake_block_device.h"
#include "tests/fakes/manual_clock.h"

namespace termfs::tlib::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ReportingBlockDeviceTest : public ::testing::Test {
 protected:
  ReportingBlockDeviceTest() {
    auto fake = std::make_unique<FakeBlockDevice>(std::make_shared<FakeMedium>(64 * kPageSize, std::byte{1}));
    fake_ = fake.get();
    device_ = std::make_unique<ReportingBlockDevice>(
        std::move(fake),
        ReportingBlockDevice::Names{
            .path = "/srv/vol/region",
            .start = 1 << 20,
            .owner_of =
                [](uint64_t offset) { return offset == 8192 ? std::string("inode 7 at 4096") : std::string(); }},
        clock_);
  }
  std::string Logged(const std::function<Status()>& access) {
    testing::internal::CaptureStderr();
    last_ = access();
    return testing::internal::GetCapturedStderr();
  }
  std::string LoggedRead(uint64_t offset) {
    return Logged([&] { return device_->Read(offset, page_); });
  }

  fakes::ManualClock clock_;
  FakeBlockDevice* fake_ = nullptr;
  std::unique_ptr<ReportingBlockDevice> device_;
  alignas(kPageSize) std::array<std::byte, kPageSize> page_{};
  Status last_;
};

TEST_F(ReportingBlockDeviceTest, Read_ThatFailsIsLoggedWithErrnoFileOffsetAndOwner) {
  fake_->InjectFault([](const BlockIo&) { return EIO; });
  const std::string line = LoggedRead(8192);
  EXPECT_THAT(line, HasSubstr("/srv/vol/region: read of 4096 bytes at 1056768, of inode 7 at 4096, failed, errno 5: "));
  EXPECT_EQ(last_.code(), EIO) << "and is the caller's error";
}

TEST_F(ReportingBlockDeviceTest, Failures_OneLineForEachKindAndMinuteWithACount) {
  fake_->InjectFault([](const BlockIo& io) { return io.kind == BlockIo::Kind::kRead ? EIO : ENOSPC; });
  fake_->FailFlushes(EIO);
  EXPECT_THAT(LoggedRead(0), HasSubstr("read of 4096 bytes at 1048576 failed, errno 5"));
  EXPECT_THAT(LoggedRead(0), IsEmpty());
  EXPECT_THAT(LoggedRead(4096), IsEmpty());
  EXPECT_THAT(Logged([&] { return device_->Write(0, page_); }),
              HasSubstr("write of 4096 bytes at 1048576 failed, errno 28"));
  EXPECT_THAT(Logged([&] { return device_->Flush(); }), HasSubstr("/srv/vol/region: flush failed, errno 5"));
  clock_.Advance(std::chrono::minutes(1));
  EXPECT_THAT(LoggedRead(4096), HasSubstr("(2 more of this kind since the last such line)"));
}

TEST_F(ReportingBlockDeviceTest, Success_IsNotLogged) {
  EXPECT_THAT(LoggedRead(0), IsEmpty());
  EXPECT_TRUE(last_.ok());
  EXPECT_THAT(Logged([&] { return device_->Flush(); }), IsEmpty());
}

}  // namespace
}  // namespace termfs::tlib::server
