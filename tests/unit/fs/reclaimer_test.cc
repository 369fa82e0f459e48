// SPDX-License-Identifier: Apache-2.0
//
// What follows an operation later: also when it could not be done at first, and not under somebody's feet.
#include "fs/server/reclaimer.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "base/log.h"
#include "fs/client/volume_client.h"
#include "tests/unit/eventually.h"
#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs::server {

namespace {

class ReclaimerTest : public testing::Test {
 protected:
  // The volume's own reclaimer would find an orphan while it starts.
  ReclaimerTest() { volume.StopBackground(); }

  // An orphan that `reclaimer` is to release.
  uint64_t NewOrphan() {
    const auto orphan = volume.names().CreateUnnamed(kRootInode, {}, {}, Nanoseconds(1), false);
    EXPECT_TRUE(orphan.ok()) << orphan.status().ToString();
    reclaimer.AddOrphan(orphan->ino);
    return orphan->ino;
  }
  int LookAt(uint64_t ino) { return volume.names().GetAttr(ino).status().code(); }

  MemoryVolume volume{uint64_t{16} << 20};
  InodeTable inodes;
  Clients clients{volume.names(), std::chrono::seconds(1)};
  ReplacedInodes replaced{std::chrono::seconds(1), 100, 100};
  Reclaimer reclaimer{volume.names(), inodes, clients, replaced, [](uint64_t) {}, [] {}};
};

}  // namespace

TEST_F(ReclaimerTest, HasOrphans_UntilTheyAreReleased) {
  EXPECT_FALSE(reclaimer.HasOrphans());
  const uint64_t orphan = NewOrphan();
  std::thread releasing;
  {
    const InodeRef inode = inodes.Get(orphan);
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
  EXPECT_EQ(LookAt(orphan), ESTALE);
}

TEST_F(ReclaimerTest, AnOrphanThatIsBeingWritten_IsReleasedLater) {
  const uint64_t orphan = NewOrphan();
  const InodeRef inode = inodes.Get(orphan);
  ASSERT_TRUE(inode->gate.TryEnter(GateMode::kShared));
  EXPECT_TRUE(reclaimer.Finish().ok());
  EXPECT_EQ(LookAt(orphan), 0);
  EXPECT_TRUE(reclaimer.HasOrphans());
  inode->gate.Leave(GateMode::kShared);
  EXPECT_TRUE(reclaimer.Finish().ok());
  EXPECT_EQ(LookAt(orphan), ESTALE);
}

TEST_F(ReclaimerTest, ACountThatFails_IsTriedAgain_AndKeepsUntilThenWhatItIsGiven) {
  metadata::NewInode wanted;
  wanted.mode = S_IFDIR | 0755;
  const uint64_t dir = volume.names().Create(kRootInode, "d", wanted, {}, Nanoseconds(1)).value().ino;
  ASSERT_TRUE(volume.names().Create(dir, "f", {}, {}, Nanoseconds(1)).ok());
  ASSERT_TRUE(volume.names().BeginQuota(dir, uint64_t{1} << 20, std::nullopt).value());
  auto until = std::make_shared<const int>();
  const std::weak_ptr<const int> kept = until;
  volume.store().FailCommits(EIO, 1'000'000);
  const int before = volume.store().commits();
  reclaimer.AddCount(dir, std::move(until));
  reclaimer.Start(volume.tlib());
  EXPECT_TRUE(Eventually([&] { return volume.store().commits() > before + 1; })) << "twice";
  EXPECT_FALSE(kept.expired());
  EXPECT_TRUE(volume.names().FindQuota(dir).value()->counting);
  volume.store().Heal();
  EXPECT_TRUE(Eventually([&] { return kept.expired(); }));
  EXPECT_FALSE(volume.names().FindQuota(dir).value()->counting);
  EXPECT_EQ(volume.names().FindQuota(dir).value()->inodes, 2u);
  reclaimer.Stop();
}

TEST_F(ReclaimerTest, AReleaseThatFails_IsTriedAgain) {
  const uint64_t orphan = NewOrphan();
  volume.store().FailCommits(EIO, 1);
  EXPECT_TRUE(reclaimer.Finish().ok());
  EXPECT_EQ(LookAt(orphan), 0);
  EXPECT_TRUE(reclaimer.Finish().ok());
  EXPECT_EQ(LookAt(orphan), ESTALE);
}

TEST_F(ReclaimerTest, TimesThatChangeWhileTheyAreWritten_AreWrittenAgain) {
  const auto file = volume.names().Create(kRootInode, "f", {}, {}, Nanoseconds(1));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const InodeRef inode = inodes.Get(file->ino);
  const auto touch = [&](int64_t when) {
    MutexLock lock(inode->mutex);
    inode->Touch(Nanoseconds(when));
  };
  {
    MutexLock lock(inode->mutex);
    inode->Load(*file);
  }
  touch(1'000);
  reclaimer.NoteDirty(file->ino);
  volume.store().BeforeNextCommit([&] { touch(2'000); });
  EXPECT_TRUE(reclaimer.Finish().ok());
  EXPECT_TRUE(reclaimer.Finish().ok());
  EXPECT_EQ(volume.names().GetAttr(file->ino)->mtime, Nanoseconds(2'000));
}

// A page of it has bytes; behind the end is what a write that failed had got, and space ahead.
TEST_F(ReclaimerTest, TheLastClose_GivesBackWhatIsBehindTheEnd_AndForgetsWhereThatWas) {
  constexpr uint64_t kGot = 9;
  constexpr uint64_t kEnd = 17;
  const uint64_t ino = volume.names().Create(kRootInode, "f", {}, {}, Nanoseconds(1)).value().ino;
  std::vector<metadata::Extent> all = volume.names().AllocateExtents(ino, 0, 1, std::nullopt, Nanoseconds(2)).value();
  ASSERT_TRUE(volume.names()
                  .SetSizeAndTimes(ino, kPageSize, metadata::SizeRule::kIfLarger, Nanoseconds(2), Nanoseconds(2))
                  .ok());
  const std::vector<metadata::Extent> behind =
      volume.names().AllocateExtents(ino, 1, kEnd - 1, std::nullopt, Nanoseconds(2), kEnd - kGot).value();
  all.insert(all.end(), behind.begin(), behind.end());
  const InodeRef inode = inodes.Get(ino);
  const auto look_up = [&] {
    MutexLock lock(inode->mutex);
    for (const metadata::Extent& extent : all) {
      inode->extents.Set({extent.file_page, extent.pages, extent.region_page.value});
    }
  };
  const auto known = [&] {
    MutexLock lock(inode->mutex);
    return inode->extents.FirstUnknown(1, kEnd) != 1;
  };
  const metadata::Attributes attributes = volume.names().GetAttr(ino).value();
  EXPECT_EQ(attributes.blocks, kEnd);
  {
    MutexLock lock(inode->mutex);
    inode->Load(attributes);
    inode->ahead_end = kEnd;
    inode->ahead_noted = true;
  }
  look_up();
  const uint64_t frees = inode->frees;
  const auto while_it_is_freed = [&] {
    EXPECT_FALSE(known());
    look_up();  // by who opens the file just now
  };
  volume.store().BeforeNextCommit(while_it_is_freed);
  volume.store().FailCommits(EIO, 1);
  EXPECT_EQ(Reclaimer::CloseLast(volume.names(), *inode).status().code(), EIO);
  EXPECT_FALSE(known());
  EXPECT_GE(inode->frees, frees + 2) << "for who reads or writes meanwhile";
  EXPECT_EQ(volume.names().GetAttr(ino)->blocks, kEnd);
  volume.store().BeforeNextCommit(while_it_is_freed);
  EXPECT_TRUE(Reclaimer::CloseLast(volume.names(), *inode).ok()) << "it is tried again";
  EXPECT_FALSE(known());
  EXPECT_EQ(volume.names().GetAttr(ino)->blocks, 1u);
}

TEST_F(ReclaimerTest, WhatCannotBeWritten_IsLoggedOnceForAll) {
  constexpr int kFiles = 20;
  std::vector<InodeRef> dirty;
  for (int i = 0; i < 2 * kFiles; ++i) {
    const auto file = volume.names().Create(kRootInode, std::to_string(i), {}, {}, Nanoseconds(1));
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    dirty.push_back(inodes.Get(file->ino));
    MutexLock lock(dirty.back()->mutex);
    dirty.back()->Load(*file);
    dirty.back()->Touch(Nanoseconds(2));
  }
  for (int i = 0; i < kFiles; ++i) {
    reclaimer.NoteDirty(dirty[i]->ino);
    reclaimer.AddClosed(dirty[kFiles + i]->ino);
  }
  const std::string path = testing::TempDir() + "termfs_reclaimer_test." + std::to_string(getpid());
  ASSERT_TRUE(StartLog(LogLevel::kError, path).ok());
  volume.store().FailCommits(EIO, 1 << 20);
  EXPECT_EQ(reclaimer.Finish().code(), EIO) << "the store lacks what could not be written";
  volume.store().Heal();
  EXPECT_TRUE(StartLog(LogLevel::kWarning).ok());
  std::ifstream log(path);
  const std::string lines{std::istreambuf_iterator<char>(log), {}};
  std::filesystem::remove(path);
  EXPECT_THAT(lines,
              testing::AllOf(testing::HasSubstr("writing the times of inode"), testing::HasSubstr("closing inode")));
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2) << lines;
}

// Of a session that ends without having closed it.
TEST(SpaceAheadTest, IsGivenBack_WhenItsSessionHasEnded) {
  MemoryVolume volume(uint64_t{64} << 20);
  constexpr uint64_t kPiece = 64 << 10;
  constexpr int kPieces = 32;
  std::unique_ptr<client::OpenFile> file;
  {
    Mount mount(volume);
    file.reset(mount.Create("f"));
    for (int i = 0; i < kPieces; ++i) {
      ASSERT_TRUE(mount.Write(file.get(), i * kPiece, std::string(kPiece, 'x')).ok());
    }
  }
  const uint64_t ino = volume.names().Lookup(kRootInode, "f")->ino;
  EXPECT_TRUE(Eventually([&] { return volume.names().GetAttr(ino)->blocks == kPieces * kPiece / kPageSize; },
                         std::chrono::seconds(20)))
      << volume.names().GetAttr(ino)->blocks;
}

}  // namespace termfs::fs::server
