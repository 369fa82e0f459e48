// SPDX-License-Identifier: Apache-2.0
//
// Pages that are freed, and become another file's, while somebody is at the file they were part of; and what there is
// after a flush that failed, or while one lasts.
#include <fcntl.h>

#include <future>

#include "tests/unit/eventually.h"
#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {

using client::OpenFile;
using std::chrono::seconds;

namespace {

constexpr uint64_t kCapacity = uint64_t{16} << 20;
constexpr uint64_t kPiece = 64 << 10;

// Fills all that is free, after what is being freed has become so.
void TakeAllSpace(Mount& mount, const char* name, uint64_t free_bytes) {
  EXPECT_TRUE(Eventually([&] { return mount.FreeBytes() >= free_bytes; })) << mount.FreeBytes();
  OpenFile* const file = mount.Create(name);
  for (uint64_t at = 0; mount.Write(file, at, std::string(kPiece, 'g')).ok(); at += kPiece) {
  }
  mount.Close(file);
}

bool IsAll(Mount& mount, const char* name, char expected) {
  OpenFile* const file = mount.Open(name, O_RDONLY);
  const std::string bytes = mount.Read(file, 0, kCapacity);
  mount.Close(file);
  return !bytes.empty() && bytes.find_first_not_of(expected) == std::string::npos;
}

}  // namespace

// What a write that failed had got is freed at the last close, and who opens the file meanwhile must not take it for
// the file's.
TEST(FreedPages, OfAFailedWrite_AreNotTheFilesAnyMore) {
  MemoryVolume volume(kCapacity);
  Mount b(volume);
  std::future<OpenFile*> opened;
  {
    Mount a(volume);
    OpenFile* const file = a.Create("f");
    ASSERT_TRUE(a.Write(file, 0, std::string(kPiece, 'a')).ok());
    volume.tlib().FailWriteAfter(4);
    ASSERT_EQ(a.Write(file, kPiece, std::string(2 * kPiece, 'a')).code(), EIO);
    volume.store().BeforeNextCommit([&] {
      opened = std::async(std::launch::async, [&b] { return b.Open("f"); });
      EXPECT_EQ(opened.wait_for(seconds(20)), std::future_status::ready);
    });
    a.Close(file);
    ASSERT_TRUE(Eventually([&] { return volume.names().GetAttr(a.InodeOf("f"))->blocks == kPiece / kPageSize; }));
  }
  ASSERT_TRUE(opened.valid()) << "nothing was freed at the close";
  OpenFile* const file = opened.get();
  TakeAllSpace(b, "g", kCapacity - 2 * kPiece);
  EXPECT_EQ(b.Write(file, kPiece, std::string(kPiece, 'b')).code(), ENOSPC);
  EXPECT_TRUE(IsAll(b, "g", 'g'));
  EXPECT_TRUE(IsAll(b, "f", 'a'));
  b.Close(file);
}

// The bytes that were cut off are zeros in memory, and not on the SSD.
TEST(FailedFlush, OfATruncation_BringsNothingBack) {
  MemoryVolume volume(kCapacity);
  {
    Mount mount(volume);
    OpenFile* const file = mount.Create("f");
    ASSERT_TRUE(mount.Write(file, 0, std::string(5000, 'x')).ok());
    ASSERT_TRUE(mount.fs->Sync(*mount.lane, file, false).ok());
    volume.tlib().FailNextFlush();
    EXPECT_TRUE(mount.Resize(mount.InodeOf("f"), 100, file).ok());
    ASSERT_TRUE(mount.Write(file, 6000, "y").ok());
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
