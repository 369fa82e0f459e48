// SPDX-License-Identifier: Apache-2.0
//
// What rename replaces can be asked for by its number for a while: by kernels that looked its name up before. Its space
// and its quota are free meanwhile.
#include "fs/server/replaced.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "fs/proto/codec.h"
#include "tests/unit/eventually.h"
#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs::server {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr ReplacedInodes::Time kBegin{std::chrono::hours(1)};
constexpr milliseconds kGrace{1000};

class ReplacedInodesTest : public testing::Test {
 protected:
  void Add(ReplacedInodes& replaced, uint64_t ino, milliseconds at, bool orphaned = true, uint64_t pages = 1,
           metadata::ProjectNumber project = 0) {
    InodeRef inode = inodes.Get(ino);
    ReplacedInodes::BeginGrace(*inode);
    const metadata::Removed removed{
        .ino = ino, .last_link = orphaned, .orphaned = orphaned, .pages = pages, .project = project};
    replaced.Add(std::move(inode), orphaned ? &removed : nullptr, kBegin + at);
  }

  InodeTable inodes;
};

TEST_F(ReplacedInodesTest, TakeEnded_NamesOrphansWhoseGraceIsOver) {
  ReplacedInodes replaced(kGrace, 10, 10);
  Add(replaced, 7, milliseconds(0));
  Add(replaced, 8, milliseconds(500));
  EXPECT_EQ(replaced.NextEnd(), kBegin + kGrace);
  EXPECT_THAT(replaced.TakeEnded(kBegin + kGrace - milliseconds(1)), IsEmpty());
  EXPECT_THAT(replaced.TakeEnded(kBegin + kGrace), ElementsAre(7));
  EXPECT_FALSE(replaced.empty());
  EXPECT_THAT(replaced.TakeEnded(kBegin + 2 * kGrace), ElementsAre(8));
  EXPECT_TRUE(replaced.empty());
  EXPECT_EQ(inodes.size(), 0u) << "nothing keeps them in memory";
}

TEST_F(ReplacedInodesTest, TakeEnded_NamesNoneThatHasAName) {
  ReplacedInodes replaced(kGrace, 10, 10);
  Add(replaced, 7, milliseconds(0), /*orphaned=*/false);
  EXPECT_EQ(replaced.use().inodes, 0u);
  EXPECT_THAT(replaced.TakeEnded(kBegin + kGrace), IsEmpty());
}

TEST_F(ReplacedInodesTest, TakeEnded_NamesOneOfTwoGracesOnce_WhenTheLastEnds) {
  ReplacedInodes replaced(kGrace, 10, 10);
  Add(replaced, 7, milliseconds(0), /*orphaned=*/false);
  Add(replaced, 7, milliseconds(500));
  EXPECT_THAT(replaced.TakeEnded(kBegin + kGrace), IsEmpty());
  EXPECT_THAT(replaced.TakeEnded(kBegin + milliseconds(1500)), ElementsAre(7));
}

TEST_F(ReplacedInodesTest, Add_OfMoreThanThereMayBe_EndsTheFirst) {
  ReplacedInodes replaced(kGrace, 2, 100);
  for (const uint64_t ino : {7, 8, 9}) {
    Add(replaced, ino, milliseconds(0));
  }
  EXPECT_TRUE(replaced.AnyEndedEarly());
  EXPECT_THAT(replaced.TakeEnded(kBegin), ElementsAre(7));
  EXPECT_FALSE(replaced.AnyEndedEarly());
}

TEST_F(ReplacedInodesTest, Add_OfMorePagesThanThereMayBe_EndsTheFirst_AndNeverTheLast) {
  ReplacedInodes replaced(kGrace, 10, 100);
  Add(replaced, 7, milliseconds(0), true, 60);
  Add(replaced, 8, milliseconds(0), true, 1000);
  EXPECT_FALSE(replaced.AnyEndedEarly()) << "beside the last one there are not too many";
  Add(replaced, 9, milliseconds(0), true, 50);
  EXPECT_THAT(replaced.TakeEnded(kBegin), ElementsAre(7, 8));
  EXPECT_EQ(replaced.use().pages, 50u);
}

TEST_F(ReplacedInodesTest, Use_CountsWhatIsNotOpen_ByItsTree) {
  ReplacedInodes replaced(kGrace, 10, 100);
  const InodeRef open = inodes.Get(6);
  {
    MutexLock lock(open->mutex);
    open->opens[1].count = 1;
  }
  Add(replaced, 6, milliseconds(0), true, 5, 3);
  Add(replaced, 7, milliseconds(0), true, 10, 3);
  Add(replaced, 8, milliseconds(0), true, 20);
  EXPECT_EQ(replaced.use().pages, 30u);
  EXPECT_EQ(replaced.use().inodes, 2u);
  EXPECT_EQ(replaced.UseOf(3).pages, 10u);
  EXPECT_EQ(replaced.UseOf(3).inodes, 1u);
  EXPECT_THAT(replaced.TakeAll(), ElementsAre(6, 7, 8));
  EXPECT_EQ(replaced.use().pages, 0u);
  EXPECT_EQ(replaced.UseOf(3).inodes, 0u);
  MutexLock lock(open->mutex);
  open->opens.clear();
}

// Files named "old", of 5 bytes, and "new"; the grace does not end by itself.
class ReplacedFileTest : public testing::Test {
 protected:
  static constexpr uint64_t kCapacity = uint64_t{16} << 20;
  static constexpr milliseconds kLong{600'000};

  ReplacedFileTest() { Begin(kLong); }
  void Begin(milliseconds grace) {
    mount.reset();
    volume.SetGrace(grace);
    volume.Restart();
    mount = std::make_unique<Mount>(volume);
  }
  uint64_t Put(std::string_view name, std::string_view data, uint64_t parent = kRootInode) {
    client::OpenFile* const file = mount->Create(name, O_RDWR, parent);
    EXPECT_TRUE(mount->Write(file, 0, data).ok());
    mount->Close(file);
    return mount->InodeOf(name, parent);
  }
  // What had the name before.
  uint64_t Replace(std::string_view name = "old", uint64_t parent = kRootInode) {
    const uint64_t replaced = mount->InodeOf(name, parent);
    Put("new", "newer", parent);
    EXPECT_TRUE(mount->fs->Rename(*mount->lane, parent, "new", parent, name, 0).ok());
    return replaced;
  }
  int OpenCode(uint64_t ino, int flags = O_RDWR) {
    const auto opened = mount->fs->Open(*mount->lane, ino, flags);
    if (opened.ok()) {
      mount->Close(*opened);
    }
    return opened.status().code();
  }
  bool NoOrphans() { return volume.names().ListOrphans(0, 10)->empty(); }

  MemoryVolume volume{kCapacity};
  std::unique_ptr<Mount> mount;
};

TEST_F(ReplacedFileTest, EverythingByItsNumber_Works) {
  Put("old", "older");
  const uint64_t old = Replace();
  for (int i = 0; i < 2; i++) {  // also after it was closed
    const auto opened = mount->fs->Open(*mount->lane, old, O_RDONLY);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    EXPECT_EQ(mount->Read(*opened, 0, 10), "older");
    mount->Close(*opened);
  }
  EXPECT_EQ(mount->Stat(old).nlink, 0u);
  EXPECT_EQ(mount->Stat(old).size, 5u);
  client::SetAttributes mode;
  mode.mode = 0600;
  EXPECT_TRUE(mount->fs->Set(*mount->lane, old, mode, nullptr).ok());
  EXPECT_TRUE(mount->fs->SetXattr(*mount->lane, old, "user.a", {}, 0, false).ok());
  EXPECT_TRUE(mount->fs->GetXattr(*mount->lane, old, "user.a").ok());
  EXPECT_TRUE(mount->fs->RemoveXattr(*mount->lane, old, "user.a").ok());
  EXPECT_TRUE(mount->Resize(old, 100'000).ok());
  EXPECT_EQ(mount->Stat(old).size, 100'000u);
  EXPECT_EQ(OpenCode(old, O_RDWR | O_TRUNC), 0);
  EXPECT_EQ(mount->Stat(old).size, 0u);
  EXPECT_EQ(mount->fs->Link(*mount->lane, old, kRootInode, "again").status().code(), ENOENT) << "as on ext4";
  client::OpenFile* const now = mount->Open("old");
  EXPECT_EQ(mount->Read(now, 0, 10), "newer");
  mount->Close(now);
}

TEST_F(ReplacedFileTest, WhatIsOpenThen_StaysForOthersAfterTheLastClose) {
  Put("old", "older");
  client::OpenFile* const file = mount->Open("old");
  const uint64_t old = Replace();
  mount->Close(file);
  ASSERT_TRUE(Eventually([&] { return volume.names().GetAttr(old)->nlink == 0; }));
  EXPECT_EQ(OpenCode(old), 0);
}

TEST_F(ReplacedFileTest, SymlinksDirectoriesAndFifos_StayToo) {
  const client::Caller root{0, 0};
  const uint64_t link = mount->fs->Symlink(*mount->lane, root, kRootInode, "l", "there")->ino;
  const uint64_t directory = mount->fs->MakeDirectory(*mount->lane, root, kRootInode, "d", 0755)->ino;
  const uint64_t fifo = mount->fs->MakeNode(*mount->lane, root, kRootInode, "p", S_IFIFO | 0644, 0)->ino;
  ASSERT_TRUE(mount->fs->MakeDirectory(*mount->lane, root, kRootInode, "d2", 0755).ok());
  Put("n1", "");
  Put("n2", "");
  ASSERT_TRUE(mount->fs->Rename(*mount->lane, kRootInode, "n1", kRootInode, "l", 0).ok());
  ASSERT_TRUE(mount->fs->Rename(*mount->lane, kRootInode, "d2", kRootInode, "d", 0).ok());
  ASSERT_TRUE(mount->fs->Rename(*mount->lane, kRootInode, "n2", kRootInode, "p", 0).ok());
  EXPECT_EQ(mount->fs->ReadLink(*mount->lane, link).value(), "there");
  EXPECT_EQ(OpenCode(directory, O_PATH), 0);
  EXPECT_EQ(OpenCode(fifo, O_PATH), 0);
}

TEST_F(ReplacedFileTest, Unlinked_IsGoneAtOnce) {
  const uint64_t ino = Put("old", "older");
  volume.Restart();
  ASSERT_TRUE(mount->Remove("old").ok());
  EXPECT_EQ(OpenCode(ino), ESTALE);
  EXPECT_TRUE(NoOrphans());
}

TEST_F(ReplacedFileTest, ExchangedAndUnlinked_StaysToo) {
  const uint64_t ino = Put("old", "older");
  Put("other", "other");
  ASSERT_TRUE(mount->fs->Rename(*mount->lane, kRootInode, "old", kRootInode, "other", RENAME_EXCHANGE).ok());
  ASSERT_TRUE(mount->Remove("other").ok());
  EXPECT_EQ(OpenCode(ino), 0);
}

TEST_F(ReplacedFileTest, ReplacedAndThenUnlinkedByItsOtherName_StaysToo) {
  const uint64_t ino = Put("old", "older");
  ASSERT_TRUE(mount->fs->Link(*mount->lane, ino, kRootInode, "backup").ok());
  Replace();
  ASSERT_TRUE(mount->Remove("backup").ok());
  EXPECT_EQ(OpenCode(ino), 0);
}

TEST_F(ReplacedFileTest, WhenItsGraceEnds_IsGone) {
  Begin(milliseconds(50));
  Put("old", "older");
  const uint64_t old = Replace();
  EXPECT_TRUE(Eventually([&] { return OpenCode(old) == ESTALE; }));
  EXPECT_TRUE(Eventually([&] { return NoOrphans(); }));
}

TEST_F(ReplacedFileTest, OpenWhenItsGraceEnds_StaysUntilTheLastClose) {
  Begin(milliseconds(50));
  Put("old", "older");
  const uint64_t old = Replace();
  const auto opened = mount->fs->Open(*mount->lane, old, O_RDWR);
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  const uint64_t next = Replace();
  ASSERT_TRUE(Eventually([&] { return OpenCode(next) == ESTALE; })) << "so the grace of the first has ended, too";
  EXPECT_EQ(mount->Read(*opened, 0, 10), "older");
  mount->Close(*opened);
  EXPECT_TRUE(Eventually([&] { return OpenCode(old) == ESTALE && NoOrphans(); }));
}

TEST_F(ReplacedFileTest, ItsSpace_IsFree_AndIsGivenToAWrite) {
  Put("old", std::string(kCapacity / 2 + kCapacity / 4, 'x'));
  const uint64_t old = Replace();
  EXPECT_GT(mount->FreeBytes(), kCapacity - (1 << 20)) << "df shows it at once";
  EXPECT_EQ(OpenCode(old), 0);
  client::OpenFile* const file = mount->Create("big");
  EXPECT_TRUE(mount->Write(file, 0, std::string(kCapacity / 2, 'y')).ok());
  mount->Close(file);
  EXPECT_EQ(OpenCode(old), ESTALE);
}

TEST_F(ReplacedFileTest, ItsSpace_IsGivenToAPreallocation) {
  Put("old", std::string(kCapacity / 2 + kCapacity / 4, 'x'));
  Replace();
  client::OpenFile* const file = mount->Create("big");
  EXPECT_TRUE(mount->fs->Allocate(*mount->lane, file, 0, 0, kCapacity / 2).ok());
  mount->Close(file);
}

TEST_F(ReplacedFileTest, ItsQuota_IsFree_AndIsGivenToANewFile) {
  const uint64_t tree = mount->fs->MakeDirectory(*mount->lane, {0, 0}, kRootInode, "d", 0755)->ino;
  wire::QuotaChangeT limits;
  limits.sets_bytes = limits.sets_inodes = true;
  limits.bytes = 1 << 20;
  limits.inodes = 3;
  ASSERT_TRUE(mount->fs->SetXattr(*mount->lane, tree, kQuotaXattr, Encode<wire::QuotaChange>(limits), 0, false).ok());
  Put("old", std::string(700'000, 'x'), tree);
  Replace("old", tree);
  const auto quota = Decode<wire::Quota>(mount->fs->GetXattr(*mount->lane, tree, kQuotaXattr).value()).value();
  EXPECT_EQ(quota.used_inodes, 2u) << "the directory and the new file";
  EXPECT_EQ(quota.used_bytes, 4096u);
  const auto space = mount->fs->StatFs(*mount->lane, tree);
  EXPECT_EQ(space->free_bytes, (1u << 20) - 4096);
  EXPECT_EQ(space->inodes_free, 1u);
  Put("third", std::string(700'000, 'y'), tree);  // too many of both, with the old one
}

TEST_F(ReplacedFileTest, AfterARestart_NothingIsLeft) {
  Put("old", "older");
  const uint64_t old = Replace();
  mount.reset();
  volume.KillAndRestart();
  mount = std::make_unique<Mount>(volume);
  EXPECT_TRUE(Eventually([&] { return OpenCode(old) == ESTALE && NoOrphans(); }));
}

TEST_F(ReplacedFileTest, AtTheEndOfTheServer_NothingIsLeft) {
  Put("old", "older");
  Replace();
  mount.reset();
  volume.StopBackground();
  volume.Restart();
  EXPECT_TRUE(NoOrphans());
  EXPECT_THAT(volume.Check(), IsEmpty());
}

// The transaction's first attempt would have replaced what the second one leaves alone.
TEST_F(ReplacedFileTest, WhatWentElsewhereMeanwhile_HasNoGrace) {
  const uint64_t ino = Put("old", "older");
  Put("new", "newer");
  volume.Restart();  // so that both surely are closed
  Mount other(volume);
  volume.store().BeforeNextCommit(
      [&] { EXPECT_TRUE(other.fs->Rename(*other.lane, kRootInode, "old", kRootInode, "elsewhere", 0).ok()); });
  ASSERT_TRUE(mount->fs->Rename(*mount->lane, kRootInode, "new", kRootInode, "old", 0).ok());
  ASSERT_TRUE(mount->Remove("elsewhere").ok());
  EXPECT_EQ(OpenCode(ino), ESTALE);
  EXPECT_TRUE(NoOrphans());
}

TEST_F(ReplacedFileTest, ARenameThatFails_LeavesNoGrace) {
  const uint64_t ino = Put("old", "older");
  Put("new", "newer");
  volume.store().FailCommits(EIO, 1);
  EXPECT_EQ(mount->fs->Rename(*mount->lane, kRootInode, "new", kRootInode, "old", 0).code(), EIO);
  mount.reset();
  mount = std::make_unique<Mount>(volume);
  ASSERT_TRUE(mount->Remove("old").ok());
  EXPECT_TRUE(Eventually([&] { return OpenCode(ino) == ESTALE; }));
  EXPECT_TRUE(Eventually([&] { return NoOrphans(); }));
}

}  // namespace
}  // namespace termfs::fs::server
