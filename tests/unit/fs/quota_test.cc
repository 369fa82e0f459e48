// SPDX-License-Identifier: Apache-2.0
//
// Quotas as the server sets them: what is counted, and how, is metadata's.
#include <gtest/gtest.h>

#include <string>

#include "fs/proto/codec.h"
#include "metadata/keys.h"
#include "tests/unit/eventually.h"
#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {
namespace {

class ServedQuotaTest : public testing::Test {
 protected:
  uint64_t MakeDir(const std::string& name) {
    metadata::NewInode wanted;
    wanted.mode = S_IFDIR | 0755;
    return volume_.names().Create(kRootInode, name, wanted, {}, Nanoseconds(1)).value().ino;
  }
  Status Limit(uint64_t dir) {
    wire::QuotaChangeT change;
    change.sets_bytes = true;
    change.bytes = uint64_t{8} << 20;
    const auto value = Encode<wire::QuotaChange>(change);
    return mount_.fs->SetXattr(*mount_.lane, dir, kQuotaXattr, value, 0, false);
  }
  wire::QuotaT Of(uint64_t ino) {
    const auto value = mount_.fs->GetXattr(*mount_.lane, ino, kQuotaXattr);
    EXPECT_TRUE(value.ok()) << value.status().ToString();
    return value.ok() ? Decode<wire::Quota>(*value).value() : wire::QuotaT{};
  }

  MemoryVolume volume_{uint64_t{16} << 20};
  Mount mount_{volume_};
};

TEST_F(ServedQuotaTest, ACountThatFails_SaysWhy_AndHoldsUpNoOther) {
  const uint64_t bad = MakeDir("bad");
  const uint64_t good = MakeDir("good");
  for (const uint64_t dir : {bad, good}) {
    ASSERT_TRUE(volume_.names().Create(dir, "f", {}, {}, Nanoseconds(2)).ok());
  }
  const std::string key = metadata::DentryKey(bad, 1, "damaged");
  const auto put = [&](const std::string& value) {
    return metadata::Retry(volume_.store(), [&](metadata::Transaction& transaction) {
      return value.empty() ? transaction.Delete(key) : transaction.Put(key, value);
    });
  };
  ASSERT_TRUE(put("damaged").ok());
  ASSERT_TRUE(Limit(bad).ok());
  EXPECT_TRUE(Eventually([&] { return !Of(bad).failure.empty(); }));
  EXPECT_TRUE(Of(bad).counting);
  ASSERT_TRUE(Limit(good).ok());
  EXPECT_TRUE(Eventually([&] { return !Of(good).counting; }));
  EXPECT_EQ(Of(good).used_inodes, 2u);
  EXPECT_EQ(Of(good).failure, "");
  EXPECT_TRUE(Of(bad).counting);
  ASSERT_TRUE(put("").ok());
  EXPECT_TRUE(Eventually([&] { return !Of(bad).counting; }));
  EXPECT_EQ(Of(bad).failure, "");
}

TEST_F(ServedQuotaTest, Set_IsAnsweredBeforeAllIsCounted_AndTheCountGoesOn) {
  const uint64_t full = MakeDir("full");
  const uint64_t first = MakeDir("first");
  const uint64_t second = MakeDir("second");
  for (int i = 0; i < 600; ++i) {  // more than one step
    ASSERT_TRUE(volume_.names().Create(full, std::to_string(i), {}, {}, Nanoseconds(2)).ok());
  }
  ASSERT_TRUE(Limit(first).ok());
  EXPECT_FALSE(Of(first).counting) << "nothing is there";
  const int before = volume_.store().commits();
  ASSERT_TRUE(Limit(second).ok());
  const int needed = volume_.store().commits() - before;
  volume_.store().FailCommits(EIO, 1'000'000, needed);
  ASSERT_TRUE(Limit(full).ok());
  EXPECT_TRUE(Of(full).counting);
  EXPECT_EQ(Of(full).bytes, uint64_t{8} << 20) << "it is in force";
  EXPECT_EQ(Of(full).used_inodes, 1u);
  volume_.store().Heal();
  EXPECT_TRUE(Eventually([&] { return !Of(full).counting; }));
  EXPECT_EQ(Of(full).used_inodes, 601u);
}

}  // namespace
}  // namespace termfs::fs
