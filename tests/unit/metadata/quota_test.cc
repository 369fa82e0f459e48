// SPDX-License-Identifier: Apache-2.0
//
// Quotas of directory trees: what counts, what is refused, and that a crash leaves neither more nor less. That what is
// counted is what is there is also looked at by Check after each test.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <set>
#include <string>
#include <thread>

#include "metadata/keys.h"
#include "metadata/operation.h"
#include "metadata/records.h"
#include "tests/unit/metadata/test_volume.h"

namespace termfs::metadata {
namespace {

class QuotaTest : public VolumeTest {
 protected:
  int Set(InodeNumber dir, std::optional<uint64_t> bytes, std::optional<uint64_t> inodes) {
    return ns().SetQuota(dir, bytes, inodes).code();
  }
  Quota Of(InodeNumber ino) {
    const auto quota = ns().FindQuota(ino);
    EXPECT_TRUE(quota.ok()) << quota.status().ToString();
    return quota.ok() ? quota->value_or(Quota{}) : Quota{};
  }
  int Create(InodeNumber parent, std::string_view name, uint32_t mode = S_IFREG | 0644) {
    NewInode inode;
    inode.mode = mode;
    return ns().Create(parent, name, inode, {}, Tick()).status().code();
  }
  int Rename(InodeNumber from, std::string_view name, InodeNumber to, std::string_view new_name,
             RenameMode mode = RenameMode::kReplace) {
    return ns().Rename(from, name, to, new_name, mode, kNotOpen, Tick()).status().code();
  }
};

TEST_F(QuotaTest, Limits_RefuseWhatGoesBeyondThem_AndNothingOfItIsDone) {
  const InodeNumber dir = MakeDir(kRootInode, "d");
  ASSERT_EQ(Set(dir, 10 * kPageSize, 3), 0);
  const InodeNumber file = Make(dir, "f");
  EXPECT_EQ(Allocate(file, 0, 11), EDQUOT);
  EXPECT_EQ(Get(file).blocks, 0u);
  EXPECT_EQ(ns().StatFs().free_pages, ns().StatFs().total_pages);
  EXPECT_EQ(Allocate(file, 0, 10), 0);
  EXPECT_EQ(Allocate(file, 5, 5), 0) << "takes nothing more";
  EXPECT_EQ(Allocate(file, 10, 1), EDQUOT);
  EXPECT_EQ(Create(dir, "sub", S_IFDIR | 0755), 0);
  EXPECT_EQ(Create(dir, "g"), EDQUOT);
  EXPECT_EQ(At(dir, "g"), 0u);
  EXPECT_EQ(ns().CreateUnnamed(dir, {}, {}, Tick(), true).status().code(), EDQUOT);
  EXPECT_EQ(Create(kRootInode, "outside"), 0);
  EXPECT_TRUE((Of(file) == Quota{dir, {10 * kPageSize, 3}, 10, 3, false}));

  ASSERT_EQ(Set(dir, 5 * kPageSize, std::nullopt), 0) << "below what is in use";
  EXPECT_EQ(Allocate(file, 10, 1), EDQUOT);
  EXPECT_TRUE(ns().PunchExtents(file, 0, 6, Tick()).ok());
  EXPECT_EQ(Allocate(file, 10, 1), 0);
  EXPECT_EQ(Allocate(file, 11, 1), EDQUOT);
  ASSERT_EQ(Set(dir, 0, 0), 0);
  EXPECT_EQ(Allocate(file, 11, 100), 0);
  EXPECT_EQ(Create(dir, "g"), 0);
  EXPECT_TRUE((Of(dir) == Quota{dir, {}, 105, 4, false})) << "without limits it is counted still";
}

TEST_F(QuotaTest, List_NamesEachDirectory) {
  ASSERT_TRUE(ns().ListQuotas().ok());
  EXPECT_TRUE(ns().ListQuotas()->empty());
  const InodeNumber home = MakeDir(kRootInode, "home");
  const InodeNumber ann = MakeDir(home, "ann");
  const InodeNumber gone = MakeDir(kRootInode, "gone");
  ASSERT_EQ(Set(ann, 10 * kPageSize, 0), 0);
  ASSERT_EQ(Set(gone, 0, 7), 0);
  const InodeNumber left = Make(gone, "f");
  ASSERT_EQ(Rename(home, "ann", home, "anna"), 0);
  ASSERT_TRUE(ns().Unlink(gone, "f", kOpen, Tick()).ok());
  ASSERT_TRUE(ns().Rmdir(kRootInode, "gone", kNotOpen, Tick()).ok());
  const auto list = ns().ListQuotas();
  ASSERT_TRUE(list.ok()) << list.status().ToString();
  ASSERT_EQ(list->size(), 2u);
  EXPECT_EQ((*list)[0].path, "/home/anna");
  EXPECT_EQ((*list)[0].quota.limits.bytes, 10 * kPageSize);
  EXPECT_EQ((*list)[1].path, "") << "removed, while a file that was in it is open";
  ASSERT_TRUE(ns().ReleaseOrphan(left).ok());
}

TEST_F(QuotaTest, List_FindsNamesInALargeDirectory) {
  std::set<std::string> paths;
  for (int i = 0; i < 2500; i++) {
    const std::string name = "d" + std::to_string(i);
    const InodeNumber dir = MakeDir(kRootInode, name);
    if (i % 100 == 0) {
      ASSERT_EQ(Set(dir, 10 * kPageSize, 0), 0);
      paths.insert("/" + name);
    }
  }
  const auto list = ns().ListQuotas();
  ASSERT_TRUE(list.ok()) << list.status().ToString();
  std::set<std::string> listed;
  for (const QuotaTree& tree : *list) {
    listed.insert(tree.path);
  }
  EXPECT_EQ(listed, paths);
}

class DamagedQuotaTest : public QuotaTest {
 protected:
  void TearDown() override {}  // what these tests leave is not sound

  static std::string NameKey(InodeNumber dir, std::string_view name) {
    return DentryKey(dir, NameHash(SmallVolume().uuid, SmallVolume().name_hash_bits)(name), name);
  }
};

TEST_F(DamagedQuotaTest, List_RemarksOnWhatHasNoPath) {
  const InodeNumber upper = MakeDir(kRootInode, "upper");
  const InodeNumber lower = MakeDir(upper, "lower");
  const InodeNumber lost = MakeDir(kRootInode, "lost");
  const InodeNumber whole = MakeDir(MakeDir(kRootInode, "a"), "whole");
  for (const InodeNumber dir : {lower, lost, whole}) {
    ASSERT_EQ(Set(dir, 10 * kPageSize, 0), 0);
  }
  Result<InodeRecord> above = ReadInode(*store().Snapshot(), upper);
  ASSERT_TRUE(above.ok());
  above->parent = lower;  // a circle
  ASSERT_TRUE(
      Retry(store(), [&](Transaction& transaction) -> Status {
        RETURN_IF_ERROR(transaction.Put(InodeKey(upper), EncodeInode(*above)));
        RETURN_IF_ERROR(transaction.Put(NameKey(lower, "upper"), EncodeDentry({upper, FileType::kDirectory, 0})));
        return transaction.Delete(NameKey(kRootInode, "lost"));
      }).ok());
  const auto list = ns().ListQuotas();
  ASSERT_TRUE(list.ok()) << list.status().ToString();
  ASSERT_EQ(list->size(), 3u);
  for (const QuotaTree& tree : *list) {
    if (tree.quota.project == whole) {
      EXPECT_EQ(tree.path, "/a/whole");
    } else {
      EXPECT_THAT(tree.path, testing::HasSubstr("(inode " + std::to_string(tree.quota.project) + ", whose path"));
    }
  }
}

TEST_F(QuotaTest, Whiteouts_AreInodesOfTheTree) {
  const InodeNumber dir = MakeDir(kRootInode, "d");
  ASSERT_EQ(Set(dir, 0, 3), 0);
  Make(dir, "f");
  const Caller owner;
  const auto move = [&](std::string_view from, std::string_view to) {
    return ns().Rename(dir, from, dir, to, RenameMode::kReplace, kNotOpen, Tick(), nullptr, &owner).status().code();
  };
  EXPECT_EQ(move("f", "g"), 0);
  EXPECT_EQ(Of(dir).inodes, 3u);
  EXPECT_EQ(move("g", "h"), EDQUOT);
  EXPECT_EQ(At(dir, "h"), 0u);
  EXPECT_EQ(move("g", "f"), 0) << "the one that it replaces goes";
  EXPECT_EQ(Of(dir).inodes, 3u);
  EXPECT_THAT(Problems(store()), testing::IsEmpty());
}

TEST_F(QuotaTest, WhatIsRemoved_CountsUntilItIsGone) {
  const InodeNumber dir = MakeDir(kRootInode, "d");
  ASSERT_EQ(Set(dir, 10 * kPageSize, 2), 0);
  const InodeNumber file = Make(dir, "f");
  ASSERT_EQ(Allocate(file, 0, 10), 0);
  ASSERT_TRUE(ns().Unlink(dir, "f", kOpen, Tick()).ok());
  EXPECT_EQ(Create(dir, "g"), EDQUOT);
  EXPECT_EQ(Of(dir).pages, 10u);
  ASSERT_TRUE(ns().Rmdir(kRootInode, "d", kNotOpen, Tick()).ok());
  EXPECT_EQ(Of(file).inodes, 1u) << "the tree lives on in the file";
  ASSERT_TRUE(ns().ReleaseOrphan(file).ok());
  EXPECT_EQ(*store().Snapshot()->Get(QuotaKey(dir)), std::nullopt);
}

TEST_F(QuotaTest, Truncate_GivesBack) {
  const InodeNumber dir = MakeDir(kRootInode, "d");
  ASSERT_EQ(Set(dir, 10 * kPageSize, 0), 0);
  const InodeNumber file = Make(dir, "f");
  ASSERT_EQ(Allocate(file, 0, 10), 0);
  ASSERT_TRUE(ns().Truncate(file, 10 * kPageSize, Tick()).ok());
  ASSERT_TRUE(ns().Truncate(file, 3 * kPageSize, Tick()).ok());
  EXPECT_EQ(Of(dir).pages, 3u);
  EXPECT_EQ(Allocate(file, 3, 7), 0);
}

TEST_F(QuotaTest, Names_StayInTheirTree) {
  const InodeNumber a = MakeDir(kRootInode, "a");
  const InodeNumber b = MakeDir(kRootInode, "b");
  ASSERT_EQ(Set(a, 1 << 20, 0), 0);
  ASSERT_EQ(Set(b, 1 << 20, 0), 0);
  const InodeNumber in_a = Make(a, "f");
  const InodeNumber outside = Make(kRootInode, "f");
  const InodeNumber sub = MakeDir(a, "sub");
  EXPECT_EQ(Rename(a, "f", b, "f"), EXDEV);
  EXPECT_EQ(Rename(a, "f", kRootInode, "g"), EXDEV);
  EXPECT_EQ(Rename(kRootInode, "f", a, "g"), EXDEV);
  EXPECT_EQ(Rename(a, "sub", kRootInode, "g"), EXDEV);
  EXPECT_EQ(Rename(a, "f", kRootInode, "f", RenameMode::kExchange), EXDEV);
  EXPECT_EQ(Rename(kRootInode, "f", a, "f", RenameMode::kExchange), EXDEV);
  EXPECT_EQ(Rename(kRootInode, "b", a, "b"), EXDEV) << "trees do not nest";
  EXPECT_EQ(ns().Link(in_a, kRootInode, "g", Tick()).status().code(), EXDEV);
  EXPECT_EQ(ns().Link(outside, a, "g", Tick()).status().code(), EXDEV);
  EXPECT_EQ(Rename(a, "f", sub, "f"), 0);
  EXPECT_EQ(ns().Link(in_a, a, "g", Tick()).status().code(), 0);
  EXPECT_EQ(Rename(kRootInode, "a", kRootInode, "c"), 0) << "the root of a tree is an entry of where it is";
  EXPECT_EQ(Set(sub, 1 << 20, 0), EINVAL);
  EXPECT_EQ(Set(kRootInode, 1 << 20, 0), EINVAL);
  EXPECT_EQ(Set(outside, 1 << 20, 0), ENOTDIR);
  EXPECT_EQ(Set(a, 1, 0), EINVAL) << "less than a page";
}

TEST_F(QuotaTest, NamesFromBeforeTheQuota_MoveWhereTheyAre) {
  const InodeNumber outside = MakeDir(kRootInode, "outside");
  const InodeNumber a = MakeDir(kRootInode, "a");
  const InodeNumber b = MakeDir(kRootInode, "b");
  const InodeNumber file = Make(a, "f");
  ASSERT_EQ(ns().Link(file, outside, "f", Tick()).status().code(), 0);
  ASSERT_EQ(ns().Link(file, b, "f", Tick()).status().code(), 0);
  Make(outside, "g");
  Make(b, "g");
  ASSERT_EQ(Set(a, 1 << 20, 0), 0);
  ASSERT_EQ(Set(b, 1 << 20, 0), 0);
  EXPECT_EQ(Rename(outside, "f", outside, "h"), 0);
  EXPECT_EQ(Rename(outside, "h", kRootInode, "h"), 0);
  EXPECT_EQ(Rename(kRootInode, "h", outside, "f"), 0);
  EXPECT_EQ(Rename(outside, "f", outside, "g", RenameMode::kExchange), 0);
  EXPECT_EQ(Rename(outside, "f", outside, "g"), 0);
  EXPECT_EQ(Rename(b, "f", b, "g", RenameMode::kExchange), 0);
  EXPECT_EQ(Rename(b, "f", b, "g"), 0);
  EXPECT_EQ(Rename(outside, "g", b, "h"), EXDEV);
  EXPECT_EQ(Rename(b, "g", a, "h"), EXDEV);
  EXPECT_EQ(Of(file).project, a) << "where it was counted first";
  EXPECT_EQ(Of(a).inodes, 2u);
}

TEST_F(QuotaTest, Set_CountsWhatIsThere) {
  const InodeNumber dir = MakeDir(kRootInode, "d");
  const InodeNumber sub = MakeDir(dir, "sub");
  for (int i = 0; i < 600; ++i) {  // more than one step
    Make(i % 2 == 0 ? dir : sub, std::to_string(i));
  }
  const InodeNumber file = Make(MakeDir(sub, "deep"), "f");
  ASSERT_EQ(Allocate(file, 0, 7), 0);
  ASSERT_EQ(ns().Link(file, dir, "again", Tick()).status().code(), 0);
  const InodeNumber outside = Make(kRootInode, "f");
  ASSERT_EQ(Set(dir, 5 * kPageSize, 10), 0) << "less than is in use";
  EXPECT_TRUE((Of(file) == Quota{dir, {5 * kPageSize, 10}, 7, 604, false}));
  EXPECT_EQ(Of(outside).project, 0u);
  EXPECT_EQ(Allocate(file, 7, 1), EDQUOT);
}

TEST_F(QuotaTest, Set_IsEndedByTheNextStart) {
  const InodeNumber dir = MakeDir(kRootInode, "d");
  const InodeNumber sub = MakeDir(dir, "sub");
  const InodeNumber file = Make(sub, "f");
  ASSERT_EQ(Allocate(file, 0, 7), 0);
  ASSERT_EQ(Set(MakeDir(kRootInode, "other"), 1 << 20, 0), 0) << "so that the superblock says it";
  // What the first transaction leaves.
  ASSERT_TRUE(Retry(store(), [&](Transaction& t) -> Status {
                auto record = ReadInode(t, dir);
                record->project = dir;
                RETURN_IF_ERROR(t.Put(InodeKey(dir), EncodeInode(*record)));
                return t.Put(QuotaKey(dir), EncodeQuota({dir, {20 * kPageSize, 0}, 0, 1, true}));
              }).ok());
  Reopen();
  EXPECT_EQ(Rename(dir, "sub", dir, "moved"), EXDEV) << "not counted yet";
  ASSERT_EQ(Create(dir, "new"), 0);
  ASSERT_TRUE(ns().Recover(true).ok());
  EXPECT_TRUE((Of(file) == Quota{dir, {20 * kPageSize, 0}, 7, 4, false}));
  EXPECT_EQ(Rename(dir, "sub", dir, "moved"), 0);
}

TEST_F(QuotaTest, None_WhileItIsCounted_LeavesItATree) {
  const InodeNumber dir = MakeDir(kRootInode, "d");
  Make(MakeDir(dir, "sub"), "f");
  ASSERT_TRUE(ns().BeginQuota(dir, 1 << 20, 0).value());
  EXPECT_TRUE(ns().BeginQuota(dir, 0, 0).value()) << "nothing in it counts yet, but something is there";
  EXPECT_TRUE((Of(dir) == Quota{dir, {}, 0, 1, true}));
  Namespace::QuotaCount count(dir);
  int steps = 0;
  while (ns().CountStep(count).value()) {
    ++steps;
  }
  EXPECT_GT(steps, 1);
  EXPECT_TRUE((Of(dir) == Quota{dir, {}, 0, 3, false}));
}

TEST_F(QuotaTest, Set_CountsWhileTheTreeIsUsed) {
  const InodeNumber dir = MakeDir(kRootInode, "d");
  std::vector<InodeNumber> subs;
  for (int i = 0; i < 20; ++i) {
    subs.push_back(MakeDir(dir, "s" + std::to_string(i)));
    for (int j = 0; j < 20; ++j) {
      Make(subs.back(), std::to_string(j));
    }
  }
  std::thread user([&] {
    for (int i = 0; i < 400; ++i) {
      const InodeNumber from = subs[i % 20];
      const InodeNumber to = subs[(i * 7 + 3) % 20];
      const std::string name = std::to_string(i % 20);
      const int moved = Rename(from, name, to, "m" + std::to_string(i));
      EXPECT_TRUE(moved == 0 || moved == EXDEV || moved == ENOENT) << moved;
      Create(to, "n" + std::to_string(i));
    }
  });
  EXPECT_EQ(Set(dir, 1 << 20, 0), 0);
  user.join();
  for (const InodeNumber sub : subs) {
    const auto entries = ns().ReadDir(sub, 0, 10000);
    ASSERT_TRUE(entries.ok());
    for (const DirectoryEntry& entry : *entries) {
      ASSERT_EQ(Of(entry.ino).project, dir) << entry.name;
    }
  }
}

TEST_F(QuotaTest, WithoutQuota_RecordsAreAsBefore) {
  const InodeNumber dir = MakeDir(kRootInode, "d");
  EXPECT_EQ((*store().Snapshot()->Get(InodeKey(dir)))->front(), 1);
  EXPECT_EQ(ns().superblock().incompatible & kQuotas, 0u);
  ASSERT_EQ(Set(dir, 1 << 20, 0), 0);
  EXPECT_EQ((*store().Snapshot()->Get(InodeKey(dir)))->front(), 2);
  EXPECT_EQ((*store().Snapshot()->Get(InodeKey(kRootInode)))->front(), 1);
  Reopen();
  EXPECT_NE(ns().superblock().incompatible & kQuotas, 0u);
  ASSERT_EQ(Set(dir, 0, std::nullopt), 0) << "an empty directory stops being a tree";
  EXPECT_EQ((*store().Snapshot()->Get(InodeKey(dir)))->front(), 1);
  EXPECT_EQ(Of(dir).project, 0u);
}

TEST_F(QuotaTest, Check_ComparesWhatIsCounted) {
  const InodeNumber dir = MakeDir(kRootInode, "d");
  ASSERT_EQ(Set(dir, 1 << 20, 0), 0);
  const auto put = [&](const Quota& quota) {
    ASSERT_TRUE(Retry(store(), [&](Transaction& t) { return t.Put(QuotaKey(dir), EncodeQuota(quota)); }).ok());
  };
  const Quota right = Of(dir);
  for (const auto& [pages, inodes] : {std::pair(1, 1), std::pair(0, 2)}) {
    Quota wrong = right;
    wrong.pages = static_cast<uint64_t>(pages);
    wrong.inodes = static_cast<uint64_t>(inodes);
    put(wrong);
    EXPECT_EQ(Problems(store()).size(), 1u);
  }
  ASSERT_TRUE(Retry(store(), [&](Transaction& t) { return t.Delete(QuotaKey(dir)); }).ok());
  EXPECT_EQ(Problems(store()).size(), 1u);
  put(right);
}

// Fills a quota tree, and ends without a word.
[[noreturn]] void FillAndDie(const std::string& directory) {
  auto store = OpenRocksDb(directory, {.create_if_missing = true});
  if (!store.ok() || !Namespace::Format(**store, SmallVolume()).ok()) {
    _exit(1);
  }
  auto ns = Namespace::Open(**store);
  NewInode wanted;
  wanted.mode = S_IFDIR | 0755;
  const auto dir = (*ns)->Create(kRootInode, "d", wanted, {}, Nanoseconds(2));
  if (!(*ns)->SetQuota(dir->ino, 100 * kPageSize, 100).ok()) {
    _exit(1);
  }
  for (int i = 0; i < 9; ++i) {
    const auto file = (*ns)->Create(dir->ino, std::to_string(i), {}, {}, Nanoseconds(3));
    if (!(*ns)->AllocateExtents(file->ino, 0, 3, std::nullopt, Nanoseconds(4)).ok()) {
      _exit(1);
    }
  }
  raise(SIGKILL);
  _exit(1);
}

TEST(QuotaCrashTest, WhatIsCounted_IsExactAfterAKill) {
  constexpr const char* kPlace = "TERMFS_QUOTA_TEST";
  testing::FLAGS_gtest_death_test_style =
      "threadsafe";  // it dies in another run of this program, as RocksDB has threads
  const TemporaryDirectory directory;
  setenv(kPlace, directory.path().c_str(), 0);  // of the run that does not die
  EXPECT_EXIT(FillAndDie(getenv(kPlace)), testing::KilledBySignal(SIGKILL), "");
  unsetenv(kPlace);
  auto store = OpenRocksDb(directory.path());
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  auto ns = Namespace::Open(**store);
  ASSERT_TRUE(ns.ok());
  const auto quota = (*ns)->FindQuota((*ns)->Lookup(kRootInode, "d")->ino);
  ASSERT_TRUE(quota.ok() && quota->has_value());
  EXPECT_EQ((*quota)->pages, 27u);
  EXPECT_EQ((*quota)->inodes, 10u);
  EXPECT_THAT(Problems(**store), testing::IsEmpty());
}

}  // namespace
}  // namespace termfs::metadata
