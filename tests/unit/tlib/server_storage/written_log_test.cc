// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/written_log.h"

#include <gtest/gtest.h>

#include "tests/fakes/fake_block_device.h"
#include "tests/unit/tlib/server_storage/task_fixture.h"

namespace termfs::tlib::server {
namespace {

constexpr uint64_t kPages = 3 * WrittenLog::kPagesPerBlock - 7;

class WrittenLogTest : public testing::Test {
 protected:
  WrittenLogTest() {
    FakeBlockDevice device(medium_);
    EXPECT_TRUE(WrittenLog::Format(device, kPages).ok());
  }
  void Damage(uint64_t slot) { medium_->bytes_[slot * WrittenLog::kSlotBytes + 100] ^= std::byte{1}; }
  std::unique_ptr<WrittenLog> Open(FakeBlockDevice& device) {
    auto log = WrittenLog::Open(device, kPages);
    EXPECT_TRUE(log.ok()) << log.status().ToString();
    return std::move(*log);
  }
  std::shared_ptr<FakeMedium> medium_ = std::make_shared<FakeMedium>(WrittenLog::BytesFor(kPages), std::byte{0xa5});
  TaskRunner runner_{1};
};

TEST_F(WrittenLogTest, Sync_ThenReopen_HasTheMarks) {
  {
    FakeBlockDevice device(medium_);
    auto log = Open(device);
    runner_.Run([&] {
      log->Set({0});
      log->Set({WrittenLog::kPagesPerBlock});
      log->Set({kPages - 1});
      EXPECT_TRUE(log->Sync().ok());
      log->Clear({0});
      EXPECT_TRUE(log->Sync().ok());
      log->Set({5});  // not synced
    });
  }
  FakeBlockDevice device(medium_);
  auto log = Open(device);
  EXPECT_FALSE(log->IsSet({0}));
  EXPECT_FALSE(log->IsSet({5}));
  EXPECT_TRUE(log->IsSet({WrittenLog::kPagesPerBlock}));
  std::vector<uint64_t> visited;
  log->ForEach([&](PageIndex page) { visited.push_back(page.value); });
  EXPECT_EQ(visited, (std::vector<uint64_t>{WrittenLog::kPagesPerBlock, kPages - 1}));
}

TEST_F(WrittenLogTest, Resize_KeepsMarksAndHasNoneOfNewPages) {
  constexpr uint64_t kLarger = 5 * WrittenLog::kPagesPerBlock;
  medium_->bytes_.resize(WrittenLog::BytesFor(kLarger), std::byte{0xa5});
  {
    FakeBlockDevice device(medium_);
    auto log = Open(device);
    runner_.Run([&] {
      log->Set({kPages - 1});
      EXPECT_TRUE(log->Sync().ok());
    });
    EXPECT_EQ(log->Resize(kLarger + 1).code(), EINVAL) << "the device is too short";
    ASSERT_TRUE(log->Resize(kLarger).ok());
    runner_.Run([&] {
      EXPECT_FALSE(log->IsSet({kPages}));
      EXPECT_FALSE(log->IsSet({kLarger - 1}));
      log->Set({kLarger - 2});
      EXPECT_TRUE(log->Sync().ok());
    });
  }
  FakeBlockDevice device(medium_);
  auto larger = WrittenLog::Open(device, kLarger);
  ASSERT_TRUE(larger.ok()) << larger.status().ToString();
  EXPECT_TRUE((*larger)->IsSet({kPages - 1}));
  EXPECT_TRUE((*larger)->IsSet({kLarger - 2}));
  EXPECT_FALSE((*larger)->IsSet({kPages}));
  EXPECT_FALSE((*larger)->IsSet({kLarger - 1}));
  const auto as_before = Open(device);  // the growth was not noted
  EXPECT_TRUE(as_before->IsSet({kPages - 1}));
  EXPECT_EQ(WrittenLog::Open(device, kLarger + 1).status().code(), EUCLEAN);
}

TEST_F(WrittenLogTest, Resize_ForgetsMarksOfALargerRegionThatWasTakenBack) {
  constexpr uint64_t kLarger = kPages + 5;  // in the same block
  {
    FakeBlockDevice device(medium_);
    auto larger = WrittenLog::Open(device, kLarger);
    ASSERT_TRUE(larger.ok()) << larger.status().ToString();
    runner_.Run([&] {
      (*larger)->Set({kPages - 1});
      (*larger)->Set({kPages + 1});
      EXPECT_TRUE((*larger)->Sync().ok());
    });
  }
  {
    FakeBlockDevice device(medium_);
    auto log = Open(device);
    ASSERT_TRUE(log->Resize(kLarger).ok());
    EXPECT_FALSE(log->IsSet({kPages + 1}));
    EXPECT_TRUE(log->IsSet({kPages - 1}));
    runner_.Run([&] { EXPECT_TRUE(log->Sync().ok()); });
  }
  FakeBlockDevice device(medium_);
  auto larger = WrittenLog::Open(device, kLarger);
  ASSERT_TRUE(larger.ok());
  EXPECT_FALSE((*larger)->IsSet({kPages + 1}));
}

TEST_F(WrittenLogTest, Sync_WithoutChanges_TouchesNothing) {
  FakeBlockDevice device(medium_);
  auto log = Open(device);
  const uint64_t before = device.flushes();
  runner_.Run([&] { EXPECT_TRUE(log->Sync().ok()); });
  EXPECT_EQ(device.writes() + device.flushes() - before, 0U);
}

TEST_F(WrittenLogTest, Crash_DuringSync_KeepsWhatWasSyncedBefore) {
  for (uint64_t seed = 0; seed < 200; seed++) {
    Random random(seed);
    FakeBlockDevice device(medium_);
    auto log = Open(device);
    std::vector<uint64_t> before;
    runner_.Run([&] {
      log->Set({seed});
      EXPECT_TRUE(log->Sync().ok());
      log->Set({1000 + seed});
      device.FailFlushes(EIO);
      EXPECT_EQ(log->Sync().code(), EIO);
    });
    device.Crash(random);
    FakeBlockDevice again(medium_);
    auto reopened = Open(again);
    for (uint64_t page = 0; page <= seed; page++) {
      EXPECT_TRUE(reopened->IsSet({page}));
    }
  }
}

TEST_F(WrittenLogTest, Sync_AfterAFailedOne_WritesItAll) {
  {
    FakeBlockDevice device(medium_);
    auto log = Open(device);
    runner_.Run([&] {
      log->Set({9});
      device.InjectFault([](const BlockIo& io) { return io.kind == BlockIo::Kind::kWrite ? EIO : 0; });
      EXPECT_EQ(log->Sync().code(), EIO);
      device.InjectFault(nullptr);
      EXPECT_TRUE(log->Sync().ok());
    });
  }
  FakeBlockDevice device(medium_);
  EXPECT_TRUE(Open(device)->IsSet({9}));
}

TEST_F(WrittenLogTest, Open_OneCopyDamaged_TakesTheOther) {
  Damage(0);
  FakeBlockDevice device(medium_);
  EXPECT_TRUE(WrittenLog::Open(device, kPages).ok());
}

TEST_F(WrittenLogTest, Open_BothCopiesDamaged_IsRefusedWithTheBlock) {
  Damage(2);
  Damage(3);
  FakeBlockDevice device(medium_);
  const auto log = WrittenLog::Open(device, kPages);
  ASSERT_FALSE(log.ok());
  EXPECT_EQ(log.status().code(), EUCLEAN);
  EXPECT_NE(log.status().ToString().find("block 1"), std::string::npos) << log.status().ToString();
}

TEST_F(WrittenLogTest, Open_OfASmallerRegion_IsRefused) {
  {
    FakeBlockDevice device(medium_);
    EXPECT_EQ(WrittenLog::Open(device, kPages * 2).status().code(), EUCLEAN) << "too short";
  }
  FakeBlockDevice smaller(medium_);
  ASSERT_TRUE(WrittenLog::Format(smaller, WrittenLog::kPagesPerBlock).ok());
  EXPECT_TRUE(WrittenLog::Open(smaller, kPages).ok()) << "the blocks behind it are whole";
  const auto block = medium_->bytes_.begin();
  std::copy(block, block + 2 * WrittenLog::kSlotBytes, block + 2 * WrittenLog::kSlotBytes);
  EXPECT_EQ(WrittenLog::Open(smaller, kPages).status().code(), EUCLEAN) << "block 0 in the place of block 1";
}

}  // namespace
}  // namespace termfs::tlib::server
