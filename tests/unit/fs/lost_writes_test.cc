// SPDX-License-Identifier: Apache-2.0
//
// A server that comes back without the memory of the one before: what was written and not synced is lost, and fsync
// says so, once to each file that was open. See "A lost write is told".
#include <fcntl.h>

#include "fs/proto/opcodes.h"
#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {

using client::OpenFile;

namespace {

constexpr uint64_t kVolumeBytes = uint64_t{16} << 20;

class LostWrites : public testing::Test {
 protected:
  int Sync(OpenFile* file) { return a.fs->Sync(*a.lane, file, false).code(); }
  void RestartWithoutMemory() {
    volume.Kill();
    volume.LoseMemory();
    volume.Restart();
  }

  MemoryVolume volume{kVolumeBytes};
  Mount a{volume};
};

}  // namespace

TEST_F(LostWrites, Sync_FailsOnceForEachOpenFile) {
  OpenFile* const writer = a.Create("f");
  OpenFile* const other = a.Open("f", O_RDONLY);
  ASSERT_TRUE(a.Write(writer, 0, "lost").ok());
  RestartWithoutMemory();
  const std::string found = a.Read(writer, 0, 4);
  EXPECT_TRUE(found == std::string(4, '\0') || found == "lost") << "write-back may have been faster: " << found;
  EXPECT_EQ(Sync(writer), EIO);
  EXPECT_EQ(Sync(writer), 0);
  OpenFile* const later = a.Open("f");
  EXPECT_EQ(Sync(later), 0) << "somebody has been told";
  EXPECT_EQ(Sync(other), EIO);
  EXPECT_EQ(Sync(other), 0);
  ASSERT_TRUE(a.Write(writer, 0, "kept").ok());
  EXPECT_EQ(Sync(writer), 0);
  EXPECT_EQ(a.Metric("link_memory_losses_total"), 1u);
  for (OpenFile* const file : {writer, other, later}) {
    a.Close(file);
  }
}

TEST_F(LostWrites, MemoryIsKept_SyncSucceeds) {
  OpenFile* const file = a.Create("f");
  ASSERT_TRUE(a.Write(file, 0, "kept").ok());
  volume.KillAndRestart();
  EXPECT_EQ(Sync(file), 0);
  EXPECT_EQ(a.Read(file, 0, 4), "kept");
  EXPECT_EQ(a.Metric("link_reconnections_total"), 1u);
  EXPECT_EQ(a.Metric("link_memory_losses_total"), 0u);
  a.Close(file);
}

TEST_F(LostWrites, SyncedBefore_SyncSucceeds) {
  OpenFile* const synced = a.Create("f");
  OpenFile* const untouched = a.Create("g");
  ASSERT_TRUE(a.Write(synced, 0, "kept").ok());
  ASSERT_EQ(Sync(synced), 0);
  RestartWithoutMemory();
  EXPECT_EQ(Sync(synced), 0);
  EXPECT_EQ(Sync(untouched), 0);
  EXPECT_EQ(a.Read(synced, 0, 4), "kept");
  EXPECT_EQ(a.Metric("link_memory_losses_total"), 1u);
  a.Close(synced);
  a.Close(untouched);
}

// The SSD, asked by nobody who waits, says that it may have lost what it had taken. Later flushes say nothing of that.
TEST_F(LostWrites, AFailedFlush_IsToldToWhoSyncsWhatWasWrittenBefore) {
  OpenFile* const written = a.Create("written");
  OpenFile* const synced = a.Create("synced");
  for (OpenFile* const file : {written, synced}) {
    ASSERT_TRUE(a.Write(file, 0, "before").ok());
  }
  EXPECT_EQ(Sync(synced), 0);
  volume.tlib().FailFlush();
  OpenFile* const later = a.Create("later");
  ASSERT_TRUE(a.Write(later, 0, "after").ok());
  EXPECT_EQ(Sync(written), EIO);
  EXPECT_EQ(Sync(written), 0);
  EXPECT_EQ(Sync(synced), 0);
  EXPECT_EQ(Sync(later), 0);
  for (OpenFile* const file : {written, synced, later}) {
    a.Close(file);
  }
}

TEST_F(LostWrites, EveryLossIsTold) {
  OpenFile* const file = a.Create("f");
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(a.Write(file, 0, "lost").ok());
    RestartWithoutMemory();
    EXPECT_EQ(Sync(file), EIO);
    EXPECT_EQ(Sync(file), 0);
  }
  a.Close(file);
}

// A program that writes, closes, and has another one sync.
TEST_F(LostWrites, ClosedFile_TellsWhoOpensItNext) {
  OpenFile* file = a.Create("f");
  ASSERT_TRUE(a.Write(file, 0, "lost").ok());
  a.Close(file);
  RestartWithoutMemory();
  file = a.Open("f");
  EXPECT_EQ(Sync(file), EIO);
  EXPECT_EQ(Sync(file), 0);
  a.Close(file);
  file = a.Open("f");
  EXPECT_EQ(Sync(file), 0);
  a.Close(file);
}

// Past the time the open files are lost; the loss of what was written is told to who opens them anew.
TEST_F(LostWrites, TimeOver_TellsWhoOpensItNext) {
  volume.SetReconnect(std::chrono::seconds(1));
  Mount b(volume);
  OpenFile* const lost = b.Create("f");
  ASSERT_TRUE(b.Write(lost, 0, "lost").ok());
  volume.Kill();
  EXPECT_EQ(b.fs->Sync(*b.lane, lost, false).code(), EIO);
  volume.LoseMemory();
  volume.Restart();
  while (b.InodeOf("f") == 0) {
    std::this_thread::yield();
  }
  OpenFile* const anew = b.Open("f");
  EXPECT_EQ(b.fs->Sync(*b.lane, anew, false).code(), EIO);
  EXPECT_EQ(b.fs->Sync(*b.lane, anew, false).code(), 0);
  b.Close(anew);
  b.Close(lost);
}

// Carried out, the reply lost, and then the bytes: whoever sends it again has not been told that it was done.
TEST_F(LostWrites, AppendSentAgain_IsThere) {
  OpenFile* const file = a.Create("f", O_RDWR | O_APPEND);
  ASSERT_TRUE(a.Write(file, 0, "first,").ok());
  ASSERT_EQ(Sync(file), 0);
  volume.tlib().LoseReplyOf(kFsWrite, [&] { RestartWithoutMemory(); });
  ASSERT_TRUE(a.Write(file, 0, "second,").ok());
  ASSERT_TRUE(a.Write(file, 0, "third").ok());
  EXPECT_EQ(a.Read(file, 0, 100), "first,second,third");
  EXPECT_EQ(Sync(file), 0) << "nothing that had returned is lost";
  a.Close(file);
}

TEST_F(LostWrites, CopySentAgain_IsThere) {
  OpenFile* const from = a.Create("from");
  OpenFile* const to = a.Create("to");
  ASSERT_TRUE(a.Write(from, 0, "source").ok());
  ASSERT_EQ(Sync(from), 0);
  volume.tlib().LoseReplyOf(kFsCopy, [&] { RestartWithoutMemory(); });
  const auto copied = a.fs->Copy(*a.lane, {.from = from, .from_offset = 0, .to = to, .to_offset = 2, .length = 100});
  ASSERT_TRUE(copied.ok()) << copied.status().ToString();
  EXPECT_EQ(*copied, 6u);
  EXPECT_EQ(a.Read(to, 0, 100), std::string("\0\0source", 8));
  EXPECT_EQ(Sync(to), 0) << "nothing that had returned is lost";
  a.Close(from);
  a.Close(to);
}

TEST_F(LostWrites, CopyThatWasGivenUp_CountsAsWritten) {
  OpenFile* const from = a.Create("from");
  OpenFile* const to = a.Create("to");
  ASSERT_TRUE(a.Write(from, 0, "source").ok());
  ASSERT_EQ(Sync(from), 0);
  volume.tlib().GiveUp(kFsCopy);
  const auto copied = a.fs->Copy(*a.lane, {.from = from, .from_offset = 0, .to = to, .to_offset = 2, .length = 100});
  EXPECT_EQ(copied.status().code(), ETIMEDOUT);
  RestartWithoutMemory();
  EXPECT_EQ(Sync(to), EIO);
  EXPECT_EQ(Sync(to), 0);
  EXPECT_EQ(Sync(from), 0);
  a.Close(from);
  a.Close(to);
}

}  // namespace termfs::fs
