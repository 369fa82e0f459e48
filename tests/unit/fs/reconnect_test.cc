// SPDX-License-Identifier: Apache-2.0
//
// A client whose server goes away and comes back: every operation happens once, what was open stays open, and nobody
// waits longer than was agreed. The server is struck after it has carried a request out and before its reply arrives.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/xattr.h>

#include <functional>
#include <thread>

#include "fs/proto/opcodes.h"
#include "tests/unit/eventually.h"
#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {

using client::OpenFile;

namespace {

constexpr uint64_t kVolumeBytes = uint64_t{16} << 20;
constexpr client::Caller kRoot{0, 0};

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

// How the reply gets lost.
enum class Strike {
  kKill,        // the server dies, and is started again on what it had committed
  kDisconnect,  // the server lives; the session is lost
};

class Once : public testing::TestWithParam<Strike> {
 protected:
  // The next request with that opcode is carried out, and its reply lost. `then`: what others do before it is asked
  // for again.
  void StrikeAt(
      Opcode opcode, std::function<void()> then = [] {}) {
    volume.tlib().LoseReplyOf(opcode, [this, then = std::move(then)] {
      if (GetParam() == Strike::kKill) {
        volume.KillAndRestart();
      }
      then();
      struck = true;
    });
  }
  ~Once() override {
    EXPECT_TRUE(struck) << "the reply was not lost";
    EXPECT_EQ(a.Metric("link_reconnections_total"), 1u);
  }

  MemoryVolume volume{kVolumeBytes};
  bool struck = false;
  Mount a{volume};
  client::FileSystem& fs = *a.fs;
  client::Lane& lane = *a.lane;
};

INSTANTIATE_TEST_SUITE_P(Strikes, Once, testing::Values(Strike::kKill, Strike::kDisconnect),
                         [](const auto& strike) { return strike.param == Strike::kKill ? "Kill" : "Disconnect"; });

}  // namespace

TEST_P(Once, CreateExclusively) {
  StrikeAt(kFsCreate);
  const auto made = fs.Create(lane, kRoot, kRootInode, "f", 0644, O_RDWR | O_CREAT | O_EXCL);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ(a.InodeOf("f"), made->first.ino);
  ASSERT_TRUE(a.Write(made->second, 0, "once").ok());
  EXPECT_EQ(a.Read(made->second, 0, 10), "once");
  a.Close(made->second);
  ASSERT_TRUE(a.Remove("f").ok());
  EXPECT_TRUE(Eventually([&] { return a.FreeBytes() == kVolumeBytes; })) << "the file stays open for nobody";
}

// As if its reply had come before the removal: the name is gone, and who made it has the file.
TEST_P(Once, CreateExclusively_WhatOthersHaveRemovedSinceIsNotMadeAgain) {
  Mount b(volume);
  StrikeAt(kFsCreate, [&] { EXPECT_TRUE(b.Remove("f").ok()); });
  const auto made = fs.Create(lane, kRoot, kRootInode, "f", 0640, O_RDWR | O_CREAT | O_EXCL);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ(made->first.nlink, 0u);
  EXPECT_EQ(made->first.mode, S_IFREG | 0640u);
  EXPECT_EQ(a.InodeOf("f"), 0u);
  ASSERT_TRUE(a.Write(made->second, 0, "mine").ok());
  EXPECT_EQ(a.Read(made->second, 0, 10), "mine");
  a.Close(made->second);
  EXPECT_TRUE(Eventually([&] { return a.FreeBytes() == kVolumeBytes; }));
}

TEST_P(Once, MakeDirectory_WhatOthersHaveRemovedSinceIsNotMadeAgain) {
  Mount b(volume);
  StrikeAt(kFsMake, [&] { EXPECT_TRUE(b.fs->RemoveDirectory(*b.lane, kRootInode, "d").ok()); });
  const auto made = fs.MakeDirectory(lane, kRoot, kRootInode, "d", 0755);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_TRUE(S_ISDIR(made->mode));
  EXPECT_EQ(a.InodeOf("d"), 0u);
}

TEST_P(Once, MakeDirectory) {
  StrikeAt(kFsMake);
  const auto made = fs.MakeDirectory(lane, kRoot, kRootInode, "d", 0755);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ(a.InodeOf("d"), made->ino);
  EXPECT_EQ(a.Stat(kRootInode).nlink, 3u);
}

TEST_P(Once, MakeNode) {
  StrikeAt(kFsMake);
  const auto made = fs.MakeNode(lane, kRoot, kRootInode, "n", S_IFIFO | 0600, 0);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ(a.InodeOf("n"), made->ino);
}

TEST_P(Once, Symlink) {
  StrikeAt(kFsMake);
  const auto made = fs.Symlink(lane, kRoot, kRootInode, "s", "somewhere");
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ(*fs.ReadLink(lane, made->ino), "somewhere");
}

TEST_P(Once, Link) {
  a.Close(a.Create("f"));
  StrikeAt(kFsLink);
  const auto linked = fs.Link(lane, a.InodeOf("f"), kRootInode, "g");
  ASSERT_TRUE(linked.ok()) << linked.status().ToString();
  EXPECT_EQ(linked->nlink, 2u);
}

TEST_P(Once, Unlink) {
  a.Close(a.Create("f"));
  StrikeAt(kFsUnlink);
  EXPECT_TRUE(a.Remove("f").ok());
  EXPECT_EQ(a.InodeOf("f"), 0u);
}

// Who gets the name in the meantime keeps it.
TEST_P(Once, Unlink_SparesAnotherFileOfTheName) {
  Mount b(volume);
  a.Close(a.Create("f"));
  StrikeAt(kFsUnlink, [&] { b.Close(b.Create("f")); });
  EXPECT_TRUE(a.Remove("f").ok());
  EXPECT_NE(a.InodeOf("f"), 0u);
}

TEST_P(Once, RemoveDirectory) {
  ASSERT_TRUE(fs.MakeDirectory(lane, kRoot, kRootInode, "d", 0755).ok());
  StrikeAt(kFsRemoveDirectory);
  EXPECT_TRUE(fs.RemoveDirectory(lane, kRootInode, "d").ok());
  EXPECT_EQ(a.InodeOf("d"), 0u);
}

TEST_P(Once, Rename) {
  a.Close(a.Create("f"));
  const uint64_t ino = a.InodeOf("f");
  StrikeAt(kFsRename);
  const Status renamed = fs.Rename(lane, kRootInode, "f", kRootInode, "g", 0);
  EXPECT_TRUE(renamed.ok()) << renamed.ToString();
  EXPECT_EQ(a.InodeOf("g"), ino);
}

TEST_P(Once, RenameLeavingWhiteout) {
  a.Close(a.Create("f"));
  const uint64_t ino = a.InodeOf("f");
  StrikeAt(kFsRename);
  EXPECT_TRUE(fs.RenameLeavingWhiteout(lane, kRoot, kRootInode, "f", kRootInode, "g", 0).ok());
  EXPECT_EQ(a.InodeOf("g"), ino);
  EXPECT_EQ(a.Stat(a.InodeOf("f")).mode, static_cast<uint32_t>(S_IFCHR));
}

TEST_P(Once, Exchange) {
  a.Close(a.Create("f"));
  a.Close(a.Create("g"));
  const uint64_t f = a.InodeOf("f");
  const uint64_t g = a.InodeOf("g");
  StrikeAt(kFsRename);
  EXPECT_TRUE(fs.Rename(lane, kRootInode, "f", kRootInode, "g", RENAME_EXCHANGE).ok());
  EXPECT_EQ(a.InodeOf("f"), g);
  EXPECT_EQ(a.InodeOf("g"), f);
}

TEST_P(Once, Append) {
  OpenFile* const file = a.Create("f", O_RDWR | O_APPEND);
  ASSERT_TRUE(a.Write(file, 0, "first,").ok());
  StrikeAt(kFsWrite);
  const Status written = a.Write(file, 0, "second,");
  EXPECT_TRUE(written.ok()) << written.ToString();
  ASSERT_TRUE(a.Write(file, 0, "third").ok());
  EXPECT_EQ(a.Read(file, 0, 100), "first,second,third");
  a.Close(file);
}

TEST_P(Once, Truncate_SparesWhatOthersWroteSince) {
  Mount b(volume);
  a.Close(a.Create("f"));
  OpenFile* const file = b.Open("f");
  StrikeAt(kFsSet, [&] { EXPECT_TRUE(b.Write(file, 0, "kept").ok()); });
  EXPECT_TRUE(a.Resize(a.InodeOf("f"), 0).ok());
  EXPECT_EQ(b.Read(file, 0, 100), "kept");
  b.Close(file);
}

TEST_P(Once, SetAttributes_SparesWhatOthersSetSince) {
  Mount b(volume);
  a.Close(a.Create("f"));
  const uint64_t ino = a.InodeOf("f");
  client::SetAttributes change;
  change.mode = 0600;
  client::SetAttributes others;
  others.mode = 0666;
  StrikeAt(kFsSet, [&] { EXPECT_TRUE(b.fs->Set(*b.lane, ino, others, nullptr).ok()); });
  EXPECT_TRUE(fs.Set(lane, ino, change, nullptr).ok());
  EXPECT_EQ(a.Stat(ino).mode & 07777, 0666u);
}

TEST_P(Once, OpenAndTruncate_SparesWhatOthersWroteSince) {
  Mount b(volume);
  a.Close(a.Create("f"));
  OpenFile* const file = b.Open("f");
  StrikeAt(kFsOpen, [&] { EXPECT_TRUE(b.Write(file, 0, "kept").ok()); });
  OpenFile* const truncated = a.Open("f", O_RDWR | O_TRUNC);
  ASSERT_NE(truncated, nullptr);
  EXPECT_EQ(a.Read(truncated, 0, 100), "kept");
  a.Close(truncated);
  b.Close(file);
}

TEST_P(Once, SetXattr) {
  a.Close(a.Create("f"));
  const uint64_t ino = a.InodeOf("f");
  StrikeAt(kFsSetXattr);
  const Status set = fs.SetXattr(lane, ino, "user.x", Bytes("1"), XATTR_CREATE, false);
  EXPECT_TRUE(set.ok()) << set.ToString();
  EXPECT_EQ(fs.GetXattr(lane, ino, "user.x")->size(), 1u);
}

TEST_P(Once, RemoveXattr) {
  a.Close(a.Create("f"));
  const uint64_t ino = a.InodeOf("f");
  ASSERT_TRUE(fs.SetXattr(lane, ino, "user.x", Bytes("1"), 0, false).ok());
  StrikeAt(kFsRemoveXattr);
  const Status removed = fs.RemoveXattr(lane, ino, "user.x");
  EXPECT_TRUE(removed.ok()) << removed.ToString();
}

TEST_P(Once, CreateUnnamed) {
  StrikeAt(kFsMakeUnnamed);
  const auto made = fs.CreateUnnamed(lane, kRoot, kRootInode, 0644, O_RDWR);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  ASSERT_TRUE(a.Write(made->second, 0, "once").ok());
  EXPECT_EQ(a.Read(made->second, 0, 10), "once");
  EXPECT_TRUE(Eventually([&] { return volume.names().StatFs().inodes == 2; })) << "the first one is gone";
  a.Close(made->second);
  EXPECT_TRUE(Eventually([&] { return volume.names().StatFs().inodes == 1; }));
}

TEST_P(Once, LinkUnnamed) {
  const auto made = fs.CreateUnnamed(lane, kRoot, kRootInode, 0644, O_RDWR);
  ASSERT_TRUE(made.ok());
  ASSERT_TRUE(a.Write(made->second, 0, "once").ok());
  StrikeAt(kFsLink);
  const auto linked = fs.Link(lane, made->first.ino, kRootInode, "f");
  ASSERT_TRUE(linked.ok()) << linked.status().ToString();
  EXPECT_EQ(linked->nlink, 1u);
  a.Close(made->second);
  Mount b(volume);
  OpenFile* const seen = b.Open("f");
  EXPECT_EQ(b.Read(seen, 0, 10), "once");
  b.Close(seen);
}

// The source has changed since: what is copied is what it had.
TEST_P(Once, Copy) {
  Mount b(volume);
  OpenFile* const from = a.Create("from");
  OpenFile* const to = a.Create("to");
  OpenFile* const other = b.Open("from");
  ASSERT_TRUE(a.Write(from, 0, "once").ok());
  StrikeAt(kFsCopy, [&] { EXPECT_TRUE(b.Write(other, 0, "again, and more").ok()); });
  const auto copied = fs.Copy(lane, {.from = from, .from_offset = 0, .to = to, .to_offset = 3, .length = 100});
  ASSERT_TRUE(copied.ok()) << copied.status().ToString();
  EXPECT_EQ(*copied, 4u);
  EXPECT_EQ(a.Read(to, 0, 100), std::string("\0\0\0once", 7));
  a.Close(from);
  a.Close(to);
  b.Close(other);
}

// By its second time the end has moved.
TEST_P(Once, Copy_BehindItself) {
  OpenFile* const file = a.Create("f");
  ASSERT_TRUE(a.Write(file, 0, "0123456789").ok());
  StrikeAt(kFsCopy);
  const auto copied = fs.Copy(lane, {.from = file, .from_offset = 0, .to = file, .to_offset = 10, .length = 100});
  ASSERT_TRUE(copied.ok()) << copied.status().ToString();
  EXPECT_EQ(a.Read(file, 0, 100), "01234567890123456789");
  a.Close(file);
}

// What may happen again needs no receipt, but has to go on all the same.
TEST_P(Once, ReadAndWrite) {
  OpenFile* const file = a.Create("f");
  ASSERT_TRUE(a.Write(file, 0, "0123456789").ok());
  EXPECT_EQ(a.Read(file, 0, 4), "0123");
  StrikeAt(kFsWrite);
  EXPECT_TRUE(a.Write(file, 4, "xxxxxxxxxx").ok());
  EXPECT_EQ(a.Read(file, 0, 100), "0123xxxxxxxxxx");
  a.Close(file);
}

TEST(Reconnect, UnlinkedFile_StaysWhoHasItOpen) {
  MemoryVolume volume(kVolumeBytes);
  Mount a(volume);
  Mount b(volume);
  OpenFile* const file = a.Create("f");
  ASSERT_TRUE(a.Write(file, 0, std::string(100'000, 'x')).ok());
  ASSERT_TRUE(a.Remove("f").ok());
  volume.KillAndRestart();
  EXPECT_EQ(b.InodeOf("f"), 0u);  // another client is back first
  EXPECT_EQ(a.Read(file, 99'990, 100), std::string(10, 'x'));
  EXPECT_EQ(a.Metric("link_files_reopened_total"), 1u);
  a.Close(file);
  EXPECT_TRUE(Eventually([&] { return a.FreeBytes() == kVolumeBytes; }));
}

// It has no name yet, survives, and gets one after that.
TEST(Reconnect, UnnamedFile_StaysWhoHasItOpen) {
  MemoryVolume volume(kVolumeBytes);
  Mount a(volume);
  Mount b(volume);
  const auto made = a.fs->CreateUnnamed(*a.lane, kRoot, kRootInode, 0644, O_RDWR);
  ASSERT_TRUE(made.ok());
  ASSERT_TRUE(a.Write(made->second, 0, "kept").ok());
  volume.KillAndRestart();
  EXPECT_EQ(b.InodeOf("f"), 0u);  // another client is back first
  EXPECT_EQ(a.Read(made->second, 0, 10), "kept");
  ASSERT_TRUE(a.fs->Link(*a.lane, made->first.ino, kRootInode, "f").ok());
  a.Close(made->second);
  volume.KillAndRestart();
  OpenFile* const seen = b.Open("f");
  EXPECT_EQ(b.Read(seen, 0, 10), "kept");
  b.Close(seen);
}

// Also one that others unlink while its client is away.
TEST(Reconnect, FileUnlinkedMeanwhile_StaysOpen) {
  MemoryVolume volume(kVolumeBytes);
  Mount a(volume);
  Mount b(volume);
  OpenFile* const file = a.Create("f");
  ASSERT_TRUE(a.Write(file, 0, "kept").ok());
  volume.KillAndRestart();
  ASSERT_TRUE(b.Remove("f").ok());
  EXPECT_EQ(a.Read(file, 0, 100), "kept");
  a.Close(file);
  EXPECT_TRUE(Eventually([&] { return a.FreeBytes() == kVolumeBytes; }));
}

TEST(Reconnect, ClientThatSaidGoodbye_IsNotWaitedFor) {
  MemoryVolume volume(kVolumeBytes);
  Mount a(volume);
  { Mount b(volume); }
  OpenFile* const file = a.Create("f");
  ASSERT_TRUE(a.Write(file, 0, "x").ok());
  volume.KillAndRestart();
  ASSERT_TRUE(a.Remove("f").ok());
  a.Close(file);
  EXPECT_TRUE(Eventually([&] { return a.FreeBytes() == kVolumeBytes; }));
}

TEST(Reconnect, TimeOver_IsEioUntilTheServerIsBack) {
  MemoryVolume volume(kVolumeBytes);
  volume.SetReconnect(std::chrono::seconds(1));
  Mount a(volume);
  OpenFile* const file = a.Create("f");
  ASSERT_TRUE(a.Write(file, 0, "kept").ok());
  volume.Kill();
  EXPECT_EQ(a.fs->Read(*a.lane, file, 0, 4).status().code(), EIO);
  EXPECT_EQ(a.fs->Lookup(*a.lane, kRootInode, "f").status().code(), EIO);
  EXPECT_EQ(a.Write(file, 0, "y").code(), EIO);
  volume.Restart();
  EXPECT_TRUE(Eventually([&] { return a.InodeOf("f") != 0; }));
  EXPECT_EQ(a.Read(file, 0, 4), "kept") << "what was open is open again";
  EXPECT_TRUE(a.Write(file, 0, "late").ok());
  EXPECT_TRUE(a.fs->Sync(*a.lane, file, false).ok());
  EXPECT_EQ(a.Metric("link_files_lost_total"), 0u);
  EXPECT_EQ(a.Metric("link_files_reopened_total"), 1u);
  OpenFile* const again = a.Open("f");
  EXPECT_EQ(a.Read(again, 0, 4), "late");
  a.Close(again);
  a.Close(file);
}

TEST(Reconnect, TimeOver_AFileWithoutANameIsLost) {
  MemoryVolume volume(kVolumeBytes);
  volume.SetReconnect(std::chrono::seconds(1));
  volume.SetExpected(1);
  Mount a(volume);
  OpenFile* const file = a.Create("f");
  OpenFile* const other = a.Create("g");
  ASSERT_TRUE(a.Write(file, 0, "gone").ok());
  ASSERT_TRUE(a.Write(other, 0, "kept").ok());
  ASSERT_TRUE(a.Remove("f").ok());
  volume.Kill();
  ASSERT_EQ(a.fs->StatFs(*a.lane, kRootInode).status().code(), EIO);
  volume.Restart();
  ASSERT_TRUE(Eventually([&] { return a.Metric("link_up") == 1u; }));
  EXPECT_EQ(a.Read(other, 0, 4), "kept");
  a.Close(file);
  a.Close(other);
  EXPECT_TRUE(Eventually([&] { return a.FreeBytes() == kVolumeBytes - kPageSize; })) << "nothing of it is left";
}

TEST(Reconnect, TimeOver_AFileThatWasLockedIsLost) {
  MemoryVolume volume(kVolumeBytes);
  volume.SetReconnect(std::chrono::seconds(1));
  Mount a(volume);
  OpenFile* const file = a.Create("f");
  OpenFile* const other = a.Create("g");
  ASSERT_TRUE(a.fs->Lock(*a.lane, file, {.flock = true, .owner = 1, .type = LockType::kWrite}, nullptr).ok());
  volume.Kill();
  ASSERT_EQ(a.fs->StatFs(*a.lane, kRootInode).status().code(), EIO);
  volume.Restart();
  ASSERT_TRUE(Eventually([&] { return a.Metric("link_up") == 1u; }));
  EXPECT_EQ(a.Write(file, 0, "relies on its lock").code(), EIO);
  EXPECT_TRUE(a.Write(other, 0, "has none").ok());
  EXPECT_EQ(a.Metric("link_files_lost_total"), 1u);
  a.Close(file);
  a.Close(other);
}

TEST(Reconnect, TimeOver_WhatIsClosedMeanwhileIsClosed) {
  MemoryVolume volume(kVolumeBytes);
  volume.SetReconnect(std::chrono::seconds(1));
  Mount a(volume);
  OpenFile* const file = a.Create("f");
  ASSERT_TRUE(a.Write(file, 0, "x").ok());
  volume.Kill();
  ASSERT_EQ(a.fs->StatFs(*a.lane, kRootInode).status().code(), EIO);
  a.Close(file);
  volume.Restart();
  ASSERT_TRUE(Eventually([&] { return a.Metric("link_up") == 1u; }));
  ASSERT_TRUE(a.Remove("f").ok());
  EXPECT_TRUE(Eventually([&] { return a.FreeBytes() == kVolumeBytes; })) << "the server has it open still";
}

TEST(Reconnect, NoReconnection_IsEioAtOnce) {
  MemoryVolume volume(kVolumeBytes);
  volume.SetReconnect(std::chrono::seconds(0));
  Mount a(volume);
  OpenFile* const file = a.Create("f");
  volume.tlib().LoseReplyOf(kFsUnlink, [&] { volume.KillAndRestart(); });
  EXPECT_EQ(a.Remove("f").code(), EIO);
  a.Close(file);
}

// In a session whose server knows nothing of earlier ones: it has to be sure that this is the first time.
TEST(Reconnect, NoReconnection_WhatIsAskedOfTheNextServerIsDone) {
  MemoryVolume volume(kVolumeBytes);
  volume.SetReconnect(std::chrono::seconds(0));
  Mount a(volume);
  const auto noticing = a.fs->OpenLane();
  ASSERT_TRUE(noticing.ok()) << noticing.status().ToString();
  volume.Kill();
  EXPECT_EQ(a.fs->StatFs(**noticing, kRootInode).status().code(), EIO);
  const auto later = a.fs->OpenLane();
  ASSERT_TRUE(later.ok()) << later.status().ToString();
  volume.Restart();
  ASSERT_TRUE(Eventually([&] { return a.Metric("link_reconnections_total") == 1; }, std::chrono::seconds(20)));
  const auto made = a.fs->MakeDirectory(*a.lane, kRoot, kRootInode, "d", 0755);
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  const auto made_later = a.fs->MakeDirectory(**later, kRoot, kRootInode, "e", 0755);
  EXPECT_TRUE(made_later.ok()) << made_later.status().ToString();
}

TEST(Reconnect, WaitingCall_IsInterrupted) {
  MemoryVolume volume(kVolumeBytes);
  Mount a(volume);
  volume.Kill();
  Interruption& interruption = a.lane->interruption();
  interruption.Begin(7);
  std::thread other([&] {
    EXPECT_TRUE(Eventually([&] { return a.Metric("link_up") == 0; }));
    EXPECT_TRUE(interruption.Interrupt(7));
  });
  EXPECT_EQ(a.fs->Lookup(*a.lane, kRootInode, "f").status().code(), EINTR);
  interruption.End();
  other.join();
  volume.Restart();
  EXPECT_TRUE(a.fs->StatFs(*a.lane, kRootInode).ok());
}

TEST(Reconnect, Abandon_EndsAWaitingCall) {
  MemoryVolume volume(kVolumeBytes);
  Mount a(volume);
  volume.Kill();
  std::thread other([&] {
    EXPECT_TRUE(Eventually([&] { return a.Metric("link_up") == 0; }));
    a.fs->Abandon("the test ends it");
  });
  EXPECT_EQ(a.fs->Lookup(*a.lane, kRootInode, "f").status().code(), ENOTCONN);
  other.join();
  volume.Restart();
}

// Closed while there is no server: the file is not opened again, or closed where it was.
TEST(Reconnect, FileClosedMeanwhile_IsClosedAtTheServer) {
  MemoryVolume volume(kVolumeBytes);
  Mount a(volume);
  OpenFile* const file = a.Create("f");
  ASSERT_TRUE(a.Write(file, 0, "x").ok());
  ASSERT_TRUE(a.Remove("f").ok());
  volume.Kill();
  a.Close(file);
  volume.Restart();
  EXPECT_TRUE(Eventually([&] { return a.FreeBytes() == kVolumeBytes; }));
}

// The server waits for the answer of a client that it has let in again, and that has not got its own answer yet.
TEST(Reconnect, InvalidationWhileFilesAreReopened_IsAnswered) {
  MemoryVolume volume(kVolumeBytes);
  RecordingCache cache;
  Mount a(volume, &cache);
  Mount b(volume);
  OpenFile* const fa = a.Create("f");
  OpenFile* const fb = b.Open("f", O_RDWR);
  uint64_t resumed = 0;
  volume.tlib().DelayReplyOf(kFsReopen, [&] {
    resumed = volume.tlib().last_session();
    const uint64_t before = cache.calls;
    EXPECT_TRUE(b.Write(fb, 0, "news").ok());
    EXPECT_EQ(cache.calls, before + 1);
  });
  volume.tlib().LoseReplyOf(kFsLookup, [] {});
  EXPECT_NE(a.InodeOf("f"), 0u);
  EXPECT_EQ(a.Read(fa, 0, 10), "news");
  EXPECT_EQ(volume.tlib().last_session(), resumed) << "it was expelled";
  a.Close(fa);
  b.Close(fb);
}

TEST(Reconnect, NoWayToTheServer_IsWaitedFor) {
  MemoryVolume volume(kVolumeBytes);
  Mount a(volume);
  volume.tlib().CutOff();
  const auto lane = a.fs->OpenLane();
  ASSERT_TRUE(lane.ok()) << lane.status().ToString();
  EXPECT_TRUE(a.fs->StatFs(**lane, kRootInode).ok());
  EXPECT_EQ(a.Metric("link_reconnections_total"), 1u);
}

TEST(Reconnect, ServerThatTakesItsTimeForAChannel_IsAskedAgain) {
  MemoryVolume volume(kVolumeBytes);
  Mount a(volume);
  const auto idle = a.fs->OpenLane();
  volume.KillAndRestart();
  EXPECT_TRUE(a.fs->StatFs(*a.lane, kRootInode).ok());
  volume.tlib().CutOff(ETIMEDOUT);
  EXPECT_TRUE(a.fs->StatFs(**idle, kRootInode).ok());
}

// As where the connections of queue pairs do not get through and the control channel does.
TEST(Reconnect, ChannelsThatTimeOutAgainAndAgain_AreWaitedFor) {
  MemoryVolume volume(kVolumeBytes);
  Mount a(volume);
  const auto idle = a.fs->OpenLane();
  volume.KillAndRestart();
  EXPECT_TRUE(a.fs->StatFs(*a.lane, kRootInode).ok());
  volume.tlib().CutOff(ETIMEDOUT, 20);
  const Status asked = a.fs->StatFs(**idle, kRootInode).status();
  EXPECT_TRUE(asked.ok()) << asked.ToString();
  volume.tlib().CutOff(ETIMEDOUT);
  const auto lane = a.fs->OpenLane();
  ASSERT_TRUE(lane.ok()) << lane.status().ToString();
  EXPECT_TRUE(a.fs->StatFs(**lane, kRootInode).ok());
  EXPECT_EQ(a.Metric("link_reconnections_total"), 1u);
}

TEST(Reconnect, ChannelWhoseConnectionIsReset_IsNoErrorOfTheRequest) {
  for (const int code : {ECONNRESET, ECONNREFUSED, EPIPE}) {
    MemoryVolume volume(kVolumeBytes);
    Mount a(volume);
    const auto idle = a.fs->OpenLane();
    volume.KillAndRestart();
    EXPECT_TRUE(a.fs->StatFs(*a.lane, kRootInode).ok());
    volume.tlib().CutOff(code);
    const Status asked = a.fs->StatFs(**idle, kRootInode).status();
    EXPECT_TRUE(asked.ok()) << asked.ToString();
    EXPECT_EQ(a.Metric("link_reconnections_total"), 2u);
  }
}

TEST(Reconnect, LaneWithoutAServer_IsThereAndItsFirstRequestWaits) {
  MemoryVolume volume(kVolumeBytes);
  Mount a(volume);
  OpenFile* const file = a.Create("f");
  volume.Kill();
  const auto lane = a.fs->OpenLane();
  ASSERT_TRUE(lane.ok()) << lane.status().ToString();
  EXPECT_GE((*lane)->buffer().size(), kPageSize);
  std::memcpy((*lane)->buffer().data(), "news", 4);
  struct Waits final : client::ServerWait {
    void Begin() override { begun++; }
    void End() override { ended++; }
    std::atomic<int> begun{0};
    std::atomic<int> ended{0};
  } waits;
  (*lane)->TellOfWaits(&waits);
  std::thread writer([&] {
    EXPECT_TRUE(a.fs->Write(**lane, file, 0, (*lane)->buffer().first(4), {}).ok()) << "from its first buffer";
  });
  EXPECT_TRUE(Eventually([&] { return waits.begun == 1; }));
  EXPECT_EQ(waits.ended, 0);
  volume.Restart();
  writer.join();
  EXPECT_EQ(waits.begun, 1);
  EXPECT_EQ(waits.ended, 1);
  EXPECT_EQ(a.Read(file, 0, 10), "news");
  a.Close(file);
}

TEST(Reconnect, AnotherVolume_IsRefused) {
  MemoryVolume volume(kVolumeBytes);
  Mount a(volume);
  volume.Kill();
  volume.tlib().Rename("other");
  volume.Restart();
  EXPECT_EQ(a.fs->StatFs(*a.lane, kRootInode).status().code(), EIO);
  volume.tlib().Rename("memory");
  EXPECT_TRUE(Eventually([&] { return a.fs->StatFs(*a.lane, kRootInode).ok(); }));
}

}  // namespace termfs::fs
