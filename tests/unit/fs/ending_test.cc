// SPDX-License-Identifier: Apache-2.0
//
// An inode ends in the transaction that takes its last name, unless somebody has it open: also when he opens it in the
// middle of that.
#include "fs/server/ending.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <future>
#include <thread>

#include "tests/unit/eventually.h"
#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {
namespace {

using testing::IsEmpty;

constexpr uint64_t kCapacity = uint64_t{16} << 20;

uint64_t MakeFile(Mount& mount, const char* name) {
  const auto made = mount.fs->MakeNode(*mount.lane, {0, 0}, kRootInode, name, S_IFREG | 0644, 0);
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return made.ok() ? made->ino : 0;
}

// Opens the inode just before the next commit; it must wait until that is over.
class OpenBeforeCommit {
 public:
  // `meanwhile` happens before the open.
  OpenBeforeCommit(MemoryVolume& volume, uint64_t ino, const std::function<void()>& meanwhile = {}) : mount_(volume) {
    volume.store().BeforeNextCommit([this, ino, meanwhile] {
      if (meanwhile) {
        meanwhile();
      }
      opened_ = std::async(std::launch::async, [this, ino] { return mount_.fs->Open(*mount_.lane, ino, O_RDWR); });
      EXPECT_EQ(opened_.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
    });
  }
  Result<client::OpenFile*> opened() { return opened_.get(); }
  // It opened; with `name` its last name goes, and it stays all the same.
  void ExpectStaysWithout(const char* name) {
    const auto opened = opened_.get();
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    EXPECT_TRUE(mount_.Write(*opened, 0, "alive").ok());
    const uint64_t ino = mount_.InodeOf(name);
    EXPECT_TRUE(mount_.Remove(name).ok());
    const auto again = mount_.fs->Open(*mount_.lane, ino, O_RDWR);
    ASSERT_TRUE(again.ok()) << again.status().ToString();
    EXPECT_EQ(mount_.Read(*again, 0, 10), "alive");
    mount_.Close(*again);
    mount_.Close(*opened);
  }

 private:
  Mount mount_;
  std::future<Result<client::OpenFile*>> opened_;
};

TEST(Ending, Unlink_OfWhatNobodyHasOpen_LeavesNoOrphan) {
  MemoryVolume volume(kCapacity);
  {
    Mount mount(volume);
    client::OpenFile* const file = mount.Create("f");
    ASSERT_TRUE(mount.Write(file, 0, std::string(kCapacity / 2, 'x')).ok());
    mount.Close(file);
  }
  volume.SetGrace(std::chrono::milliseconds(0));
  volume.Restart();  // so that it surely is closed
  Mount mount(volume);
  MakeFile(mount, "replaced");
  MakeFile(mount, "new");
  ASSERT_TRUE(mount.fs->MakeDirectory(*mount.lane, {0, 0}, kRootInode, "d", 0755).ok());
  EXPECT_TRUE(mount.fs->Rename(*mount.lane, kRootInode, "new", kRootInode, "replaced", 0).ok());
  EXPECT_TRUE(mount.fs->RemoveDirectory(*mount.lane, kRootInode, "d").ok());
  EXPECT_TRUE(mount.Remove("f").ok());
  EXPECT_THAT(volume.names().ListOrphans(0, 10).value(), IsEmpty());
  EXPECT_TRUE(Eventually([&] { return mount.FreeBytes() == kCapacity; })) << "its pages are free again";
}

TEST(Ending, Unlink_OfWhatIsOpen_LeavesAnOrphanUntilTheLastClose) {
  MemoryVolume volume(kCapacity);
  Mount mount(volume);
  client::OpenFile* const file = mount.Create("f");
  ASSERT_TRUE(mount.Remove("f").ok());
  EXPECT_EQ(volume.names().ListOrphans(0, 10)->size(), 1u);
  mount.Close(file);
  EXPECT_TRUE(Eventually([&] { return volume.names().ListOrphans(0, 10)->empty(); }));
}

TEST(Ending, Open_InTheMiddleOfTheUnlink_FindsNothing) {
  MemoryVolume volume(kCapacity);
  Mount mount(volume);
  OpenBeforeCommit other(volume, MakeFile(mount, "f"));
  EXPECT_TRUE(mount.Remove("f").ok());
  EXPECT_EQ(other.opened().status().code(), ESTALE);
  EXPECT_THAT(volume.names().ListOrphans(0, 10).value(), IsEmpty());
}

TEST(Ending, Open_InTheMiddleOfAnUnlinkThatFails_Opens) {
  MemoryVolume volume(kCapacity);
  Mount mount(volume);
  OpenBeforeCommit other(volume, MakeFile(mount, "f"));
  volume.store().FailCommits(EIO, 1);
  EXPECT_EQ(mount.Remove("f").code(), EIO);
  other.ExpectStaysWithout("f");
}

// The transaction's first attempt would have removed what the second one leaves alone.
TEST(Ending, Rename_WhoseTargetWentElsewhereMeanwhile_LeavesItAlone) {
  MemoryVolume volume(kCapacity);
  volume.SetGrace(std::chrono::milliseconds(0));
  volume.Restart();
  Mount mount(volume);
  Mount third(volume);
  MakeFile(mount, "source");
  const uint64_t target = MakeFile(mount, "target");
  OpenBeforeCommit other(volume, target, [&] {
    EXPECT_TRUE(third.fs->Rename(*third.lane, kRootInode, "target", kRootInode, "elsewhere", 0).ok());
  });
  ASSERT_TRUE(mount.fs->Rename(*mount.lane, kRootInode, "source", kRootInode, "target", 0).ok());
  other.ExpectStaysWithout("elsewhere");
}

TEST(Ending, Create_WhileOthersUnlinkTheName_OpensAFileThatStays) {
  MemoryVolume volume(kCapacity);
  std::atomic<bool> stop{false};
  std::thread remover([&] {
    Mount mount(volume);
    while (!stop) {
      const Status removed = mount.Remove("f");
      EXPECT_TRUE(removed.ok() || removed.code() == ENOENT) << removed.ToString();
    }
  });
  {
    Mount mount(volume);
    for (int i = 0; i < 3000 && !testing::Test::HasFailure(); i++) {
      client::OpenFile* const file = mount.Create("f");
      ASSERT_TRUE(file != nullptr);
      EXPECT_TRUE(mount.Write(file, 0, "x").ok()) << i;
      mount.Close(file);
    }
  }
  stop = true;
  remover.join();
  EXPECT_TRUE(Eventually([&] { return volume.names().ListOrphans(0, 10)->empty(); }));
}

}  // namespace
}  // namespace termfs::fs
