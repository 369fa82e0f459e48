// SPDX-License-Identifier: Apache-2.0
//
// Files of more extents than a server keeps in memory: what it has forgotten it looks up again, for everybody.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {

using client::OpenFile;

namespace {

class ManyExtentsTest : public testing::Test {
 protected:
  static constexpr uint64_t kPages = 600;  // every other one is a hole; more extents than an open looks up

  ManyExtentsTest() {
    {
      Mount writer(volume);
      OpenFile* const file = writer.Create("f");
      for (uint64_t page = 0; page < kPages; page += 2) {
        EXPECT_TRUE(writer.Write(file, page << kPageBits, Content(page)).ok());
      }
      EXPECT_TRUE(writer.fs->Sync(*writer.lane, file, false).ok());
      writer.Close(file);
    }
    volume.SetMaxSegments(16);
    volume.Restart();
  }
  static std::string Content(uint64_t page) { return std::string(kPageSize, static_cast<char>('a' + page % 26)); }

  MemoryVolume volume{uint64_t{16} << 20};
};

}  // namespace

TEST_F(ManyExtentsTest, SeekFindsAllOfThem) {
  Mount mount(volume);
  OpenFile* const file = mount.Open("f");
  for (uint64_t page = 0; page < kPages - 1; page += 7) {
    const auto data = mount.fs->Seek(*mount.lane, file, page << kPageBits, SEEK_DATA);
    const uint64_t next = page + page % 2;
    if (next < kPages) {
      ASSERT_TRUE(data.ok()) << page;
      EXPECT_EQ(*data, next << kPageBits);
    }
    const auto hole = mount.fs->Seek(*mount.lane, file, page << kPageBits, SEEK_HOLE);
    ASSERT_TRUE(hole.ok()) << page;
    EXPECT_EQ(*hole, (page % 2 == 0 ? page + 1 : page) << kPageBits);
  }
  mount.Close(file);
}

TEST_F(ManyExtentsTest, WhatIsSyncedIsThereAfterPowerLoss) {
  {
    Mount mount(volume);
    OpenFile* const file = mount.Open("f");
    EXPECT_TRUE(mount.Write(file, 0, "first").ok());
    EXPECT_TRUE(mount.fs->Sync(*mount.lane, file, false).ok());
    mount.Close(file);
    volume.Kill();
  }
  volume.LoseMemory();
  volume.Restart();
  Mount mount(volume);
  OpenFile* const file = mount.Open("f");
  EXPECT_EQ(mount.Read(file, 0, 5), "first");
  mount.Close(file);
}

// While others look elsewhere in the file all the time, and have it forgotten.
TEST_F(ManyExtentsTest, WritesAndCopiesAreCarriedOut) {
  std::atomic<bool> enough{false};
  std::thread looker([&] {
    Mount mount(volume);
    OpenFile* const file = mount.Open("f", O_RDONLY);
    for (uint64_t round = 0; !enough; ++round) {
      const uint64_t page = round * 34 % kPages;
      EXPECT_TRUE(mount.fs->Seek(*mount.lane, file, page << kPageBits, SEEK_HOLE).ok());
    }
    mount.Close(file);
  });
  Mount mount(volume);
  OpenFile* const file = mount.Open("f");
  for (uint64_t round = 0; round < 300; ++round) {
    const uint64_t page = round * 14 % (kPages - 2);
    const std::string content = Content(round);
    ASSERT_TRUE(mount.Write(file, page << kPageBits, content).ok());
    ASSERT_TRUE(mount.Read(file, page << kPageBits, kPageSize) == content) << round;
    const uint64_t to = (page + 20) % (kPages - 2);
    const auto copied = mount.fs->Copy(*mount.lane, {.from = file,
                                                     .from_offset = page << kPageBits,
                                                     .to = file,
                                                     .to_offset = to << kPageBits,
                                                     .length = kPageSize});
    ASSERT_TRUE(copied.ok() && *copied == kPageSize) << round;
    ASSERT_TRUE(mount.Read(file, to << kPageBits, kPageSize) == content) << round;
  }
  enough = true;
  looker.join();
  mount.Close(file);
}

TEST_F(ManyExtentsTest, AHoleWithoutEnd_CostsLittle) {
  Mount mount(volume);
  OpenFile* const file = mount.Open("f");
  ASSERT_TRUE(mount.Resize(mount.InodeOf("f"), kMaxFileBytes, file).ok());
  const auto data = mount.fs->Seek(*mount.lane, file, kPages << kPageBits, SEEK_DATA);
  EXPECT_EQ(data.status().code(), ENXIO);
  mount.Close(file);
}

}  // namespace termfs::fs
