// SPDX-License-Identifier: Apache-2.0
//
// What a refusal for lack of space or quota may wait for.
#include "fs/server/reclaimer.h"

#include <thread>

#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs::server {

TEST(ReclaimerTest, HasOrphans_UntilTheyAreReleased) {
  MemoryVolume volume(uint64_t{16} << 20);
  const auto orphan = volume.names().CreateUnnamed(kRootInode, {}, {}, Nanoseconds(1), false);
  ASSERT_TRUE(orphan.ok()) << orphan.status().ToString();
  InodeTable inodes;
  Clients clients(volume.names(), std::chrono::seconds(1));
  Reclaimer reclaimer(
      volume.names(), inodes, clients, [](uint64_t) {}, [] {});
  EXPECT_FALSE(reclaimer.HasOrphans());
  reclaimer.AddOrphan(orphan->ino);
  std::thread releasing;
  {
    const InodeRef inode = inodes.Get(orphan->ino);
    MutexLock lock(inode->mutex);
    releasing = std::thread([&] { EXPECT_TRUE(reclaimer.Finish().ok()); });
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    while (reclaimer.HasOrphans() && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(reclaimer.HasOrphans()) << "it is taken up, but still there";
  }
  releasing.join();
  EXPECT_FALSE(reclaimer.HasOrphans());
  EXPECT_EQ(volume.names().GetAttr(orphan->ino).status().code(), ESTALE);
}

}  // namespace termfs::fs::server
