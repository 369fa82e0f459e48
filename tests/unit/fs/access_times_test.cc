// SPDX-License-Identifier: Apache-2.0
//
// Access times: by the first access after a change, by whomever, and by no other.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tests/unit/eventually.h"
#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {

using client::OpenFile;

namespace {

constexpr std::string_view kText = "12345678";

class AccessTimes : public testing::Test {
 protected:
  AccessTimes() {
    OpenFile* const file = writer.Create("f");
    EXPECT_TRUE(writer.Write(file, 0, kText).ok());
    writer.Close(file);
    ino = writer.InodeOf("f");
  }
  static std::string ReadOnce(Mount& mount, int flags = O_RDONLY) {
    OpenFile* const file = mount.Open("f", flags);
    std::string text = mount.Read(file, 0, 100);
    mount.Close(file);
    return text;
  }
  void WriteMore() {
    OpenFile* const file = writer.Open("f", O_WRONLY);
    EXPECT_TRUE(writer.Write(file, kText.size(), "9").ok());
    writer.Close(file);
  }
  int64_t Of(uint64_t of) { return writer.Stat(of).atime; }
  // Whether `access` moves it; everything else stays.
  template <typename Access>
  bool Moves(uint64_t of, Access access) {
    const Attributes before = writer.Stat(of);
    access();
    const Attributes after = writer.Stat(of);
    EXPECT_EQ(after.mtime, before.mtime);
    EXPECT_EQ(after.ctime, before.ctime);
    EXPECT_GE(after.atime, before.atime);
    return after.atime > before.atime;
  }

  MemoryVolume volume{uint64_t{16} << 20};
  Mount writer{volume};
  uint64_t ino = 0;
};

}  // namespace

TEST_F(AccessTimes, File_FirstReadAfterAChange) {
  Mount reader(volume);
  EXPECT_FALSE(Moves(ino, [&] { reader.Close(reader.Open("f", O_RDONLY)); })) << "nothing was read";
  EXPECT_TRUE(Moves(ino, [&] { EXPECT_EQ(ReadOnce(reader), kText); }));
  EXPECT_GT(Of(ino), writer.Stat(ino).mtime);
  EXPECT_FALSE(Moves(ino, [&] { EXPECT_EQ(ReadOnce(reader), kText); }));
  EXPECT_FALSE(Moves(ino, [&] { EXPECT_EQ(ReadOnce(writer), kText); }));
  EXPECT_EQ(writer.Metric("fs_server_reads_total"), 0u) << "an open that would not move it brings the map";
  WriteMore();
  EXPECT_TRUE(Moves(ino, [&] { ReadOnce(writer); }));
}

TEST_F(AccessTimes, File_ReadThroughANewOpenWhileAnOldOneHasTheMap) {
  OpenFile* const old = writer.Open("f", O_RDWR | O_NOATIME);
  ASSERT_EQ(writer.Read(old, 0, 100), kText);
  EXPECT_TRUE(Moves(ino, [&] { EXPECT_EQ(ReadOnce(writer), kText); }));
  EXPECT_EQ(writer.Read(old, 0, 100), kText);
  writer.Close(old);
}

TEST_F(AccessTimes, File_InTheStoreSoonAndWhatFailsIsTriedAgain) {
  volume.store().FailCommits(ENOSPC, 1);
  EXPECT_TRUE(Moves(ino, [&] { EXPECT_EQ(ReadOnce(writer), kText); }));
  const int64_t moved = Of(ino);
  EXPECT_TRUE(Eventually([&] { return volume.names().GetAttr(ino)->atime.count() == moved; }));
  volume.KillAndRestart();
  EXPECT_EQ(Of(ino), moved);
  EXPECT_FALSE(Moves(ino, [&] { ReadOnce(writer); }));
}

TEST_F(AccessTimes, File_ChangedBeforeItIsInTheStore) {
  ReadOnce(writer);
  const int64_t moved = Of(ino);
  client::SetAttributes what;
  what.mode = 0600;
  ASSERT_TRUE(writer.fs->Set(*writer.lane, ino, what, nullptr).ok());
  EXPECT_EQ(Of(ino), moved);
  EXPECT_EQ(volume.names().GetAttr(ino)->atime.count(), moved);
}

TEST_F(AccessTimes, File_SetBackItIsDueAgain) {
  OpenFile* const other = writer.Open("f", O_RDWR | O_NOATIME);  // so that the server knows it all the time
  ReadOnce(writer);
  client::SetAttributes what;
  what.atime = 0;
  ASSERT_TRUE(writer.fs->Set(*writer.lane, ino, what, nullptr).ok());
  EXPECT_EQ(Of(ino), 0);
  EXPECT_TRUE(Moves(ino, [&] { ReadOnce(writer); }));
  writer.Close(other);
}

TEST_F(AccessTimes, NotByWhoOpensWithNoatime) {
  EXPECT_FALSE(Moves(ino, [&] { EXPECT_EQ(ReadOnce(writer, O_RDONLY | O_NOATIME), kText); }));
  EXPECT_EQ(writer.Metric("fs_server_reads_total"), 0u);
  OpenFile* const file = writer.Open("f", O_RDWR | O_NOATIME);
  ASSERT_TRUE(writer.Resize(ino, kPageSize * 4, file).ok());
  EXPECT_FALSE(Moves(ino, [&] { EXPECT_EQ(writer.Read(file, 2 * kPageSize, 10), std::string(10, '\0')); }));
  writer.Close(file);
}

TEST_F(AccessTimes, NotByAMountThatKeepsThem) {
  const auto link = writer.fs->Symlink(*writer.lane, {0, 0}, kRootInode, "link", "target");
  ASSERT_TRUE(link.ok());
  volume.SetAccessTimes(false, true);
  Mount keeps(volume);
  EXPECT_FALSE(Moves(ino, [&] { EXPECT_EQ(ReadOnce(keeps), kText); }));
  EXPECT_FALSE(Moves(link->ino, [&] { EXPECT_EQ(*keeps.fs->ReadLink(*keeps.lane, link->ino), "target"); }));
  EXPECT_FALSE(
      Moves(kRootInode, [&] { EXPECT_TRUE(keeps.fs->ReadDirectory(*keeps.lane, kRootInode, 0, 4096, false).ok()); }));
  volume.SetAccessTimes(true, false);
  Mount keeps_directories(volume);
  EXPECT_FALSE(Moves(kRootInode, [&] {
    EXPECT_TRUE(keeps_directories.fs->ReadDirectory(*keeps_directories.lane, kRootInode, 0, 4096, true).ok());
  }));
  EXPECT_TRUE(Moves(ino, [&] { ReadOnce(keeps_directories); }));
}

TEST_F(AccessTimes, AsThatMountIsToldLater) {
  const auto list = [&] { EXPECT_TRUE(writer.fs->ReadDirectory(*writer.lane, kRootInode, 0, 4096, true).ok()); };
  writer.fs->MoveAccessTimes({.files = false, .directories = true});
  EXPECT_FALSE(Moves(ino, [&] { EXPECT_EQ(ReadOnce(writer), kText); }));
  EXPECT_FALSE(Moves(kRootInode, list));
  writer.fs->MoveAccessTimes({.files = true, .directories = false});
  EXPECT_FALSE(Moves(kRootInode, list));
  EXPECT_TRUE(Moves(ino, [&] { EXPECT_EQ(ReadOnce(writer), kText); }));
  writer.fs->MoveAccessTimes({});
  EXPECT_TRUE(Moves(kRootInode, list));
}

TEST_F(AccessTimes, Directory_ByItsFirstPartAfterAChange) {
  const auto list = [&](uint64_t cursor) {
    EXPECT_TRUE(writer.fs->ReadDirectory(*writer.lane, kRootInode, cursor, 4096, true).ok());
  };
  EXPECT_FALSE(Moves(kRootInode, [&] { list(2); })) << "the rest of it";
  EXPECT_TRUE(Moves(kRootInode, [&] { list(0); }));
  EXPECT_FALSE(Moves(kRootInode, [&] { list(0); }));
  writer.Close(writer.Create("g"));
  EXPECT_TRUE(Moves(kRootInode, [&] { list(0); }));
}

TEST_F(AccessTimes, Link_ByItsFirstReading) {
  const auto link = writer.fs->Symlink(*writer.lane, {0, 0}, kRootInode, "link", "target");
  ASSERT_TRUE(link.ok());
  const auto follow = [&] { EXPECT_EQ(*writer.fs->ReadLink(*writer.lane, link->ino), "target"); };
  EXPECT_TRUE(Moves(link->ino, follow));
  EXPECT_FALSE(Moves(link->ino, follow));
}

TEST_F(AccessTimes, Copy_CountsForItsSourceAndEveryKernelHearsOfIt) {
  class Told final : public client::KernelCache {
   public:
    bool InvalidateInode(uint64_t, uint64_t, uint64_t) override { return true; }
    void InvalidateAttributes(uint64_t of, std::chrono::steady_clock::time_point) override { last = of; }
    [[nodiscard]] bool InvalidateEntry(uint64_t, std::string_view) override { return true; }
    void ServerLost() override {}
    std::atomic<uint64_t> last{0};
  } told;
  Mount copier(volume, &told);
  for (const bool keeps : {true, false, false}) {
    OpenFile* const from = copier.Open("f", keeps ? O_RDONLY | O_NOATIME : O_RDONLY);
    OpenFile* const to = keeps ? copier.Create("to") : copier.Open("to");
    const bool due = writer.Stat(ino).atime <= writer.Stat(ino).mtime;
    copier.Stat(ino);
    EXPECT_EQ(Moves(ino,
                    [&] {
                      EXPECT_EQ(
                          *copier.fs->Copy(*copier.lane,
                                           {.from = from, .from_offset = 0, .to = to, .to_offset = 0, .length = 4}),
                          4u);
                    }),
              due && !keeps);
    EXPECT_EQ(told.last.exchange(0), due && !keeps ? ino : 0);
    copier.Close(from);
    copier.Close(to);
  }
}

TEST_F(AccessTimes, Directory_TheStoreIsFullAndItIsListed) {
  volume.store().FailCommits(ENOSPC, 1);
  EXPECT_FALSE(
      Moves(kRootInode, [&] { EXPECT_TRUE(writer.fs->ReadDirectory(*writer.lane, kRootInode, 0, 4096, true).ok()); }));
}

}  // namespace termfs::fs
