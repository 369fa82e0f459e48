// SPDX-License-Identifier: Apache-2.0
//
// What there is after a flush that failed, and while one lasts.
#include <future>
#include <vector>

#include "tests/unit/eventually.h"
#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {

using client::OpenFile;

namespace {

constexpr uint64_t kCapacity = uint64_t{16} << 20;

}  // namespace

// The bytes that were cut off are zeros in memory, and not on the SSD: neither fsync nor the reclaimer forgets that.
TEST(FailedFlush, OfATruncation_BringsNothingBack) {
  MemoryVolume volume(kCapacity);
  {
    Mount mount(volume);
    OpenFile* const file = mount.Create("f");
    ASSERT_TRUE(mount.Write(file, 0, std::string(5000, 'x')).ok());
    ASSERT_TRUE(mount.fs->Sync(*mount.lane, file, false).ok());
    EXPECT_TRUE(mount.Resize(mount.InodeOf("f"), 100, file).ok());
    ASSERT_TRUE(mount.Write(file, 6000, "y").ok());
    volume.tlib().FailNextFlush();
    (void)mount.fs->Sync(*mount.lane, file, false);  // it succeeds where the reclaimer's flush came first, and failed
    mount.Close(file);
    volume.Kill();
  }
  volume.LoseMemory();
  volume.Restart();
  Mount mount(volume);
  OpenFile* const file = mount.Open("f");
  EXPECT_EQ(mount.Read(file, 0, 5000), std::string(100, 'x') + std::string(4900, '\0'));
  mount.Close(file);
}

// Who comes second finds nothing left to flush.
TEST(LongFlush, OfWhatAnotherMountSyncs_IsWaitedForByFsync) {
  MemoryVolume volume(kCapacity);
  Mount a(volume);
  Mount b(volume);
  OpenFile* const fa = a.Create("f");
  ASSERT_TRUE(a.Write(fa, 0, "bytes").ok());
  OpenFile* const fb = b.Open("f");
  volume.tlib().HoldFlushes(true);
  const auto sync = [](Mount& mount, OpenFile* file) {
    return std::async(std::launch::async, [&mount, file] { return mount.fs->Sync(*mount.lane, file, false); });
  };
  std::vector<std::future<Status>> syncs;
  syncs.push_back(sync(b, fb));
  syncs.push_back(sync(a, fa));
  for (const auto& one : syncs) {
    EXPECT_EQ(one.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  }
  volume.tlib().HoldFlushes(false);
  for (auto& one : syncs) {
    EXPECT_TRUE(one.get().ok());
  }
  a.Close(fa);
  b.Close(fb);
}

TEST(LongFlush, OfWhatTheLastServerLeft_DoesNotHoldUpTheLog) {
  MemoryVolume volume(kCapacity);
  volume.Kill();
  volume.tlib().HoldFlushes(true);
  volume.Restart();
  Mount mount(volume);
  mount.Close(mount.Create("f"));
  const int before = volume.store().syncs();
  EXPECT_TRUE(Eventually([&] { return volume.store().syncs() > before; }));
  volume.tlib().HoldFlushes(false);
}

}  // namespace termfs::fs
