// SPDX-License-Identifier: Apache-2.0
//
// Lookup, Create, Link, Unlink, Rmdir, orphans, SetAttr.
#include "tests/unit/metadata/test_volume.h"

namespace termfs::metadata {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class NamesTest : public VolumeTest {
 protected:
  int CreateCode(InodeNumber parent, std::string_view name, uint32_t mode = S_IFREG | 0644) {
    return ns().Create(parent, name, {mode, 0, ""}, {}, Tick()).status().code();
  }
};

TEST_F(NamesTest, Create_SetsAttributesAndParent) {
  NewInode wanted{S_IFCHR | 0640, 0x105, ""};
  const auto created = ns().Create(kRootInode, "dev", wanted, {10, 20}, Nanoseconds(77));
  ASSERT_TRUE(created.ok());
  EXPECT_EQ(created->mode, S_IFCHR | 0640u);
  EXPECT_EQ(created->rdev, 0x105u);
  EXPECT_EQ(created->uid, 10u);
  EXPECT_EQ(created->gid, 20u);
  EXPECT_EQ(created->nlink, 1u);
  EXPECT_EQ(created->btime, Nanoseconds(77));
  const auto found = ns().Lookup(kRootInode, "dev");
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(*found, *created);
  EXPECT_EQ(Get(kRootInode).mtime, Nanoseconds(77));
  EXPECT_EQ(Get(kRootInode).nlink, 2u);
  EXPECT_EQ(Get(kRootInode).size, 1u);
}

TEST_F(NamesTest, Create_DirectoryCountsInParentAndKnowsIt) {
  const InodeNumber dir = MakeDir(kRootInode, "d");
  EXPECT_EQ(Get(kRootInode).nlink, 3u);
  EXPECT_EQ(Get(dir).nlink, 2u);
  EXPECT_EQ(At(dir, ".."), kRootInode);
  EXPECT_EQ(At(dir, "."), dir);
  EXPECT_EQ(*ns().Parent(dir), kRootInode);
  EXPECT_EQ(*ns().Parent(kRootInode), kRootInode);
}

TEST_F(NamesTest, Create_InSetgidDirectoryInheritsGroupAndBit) {
  const auto dir = ns().Create(kRootInode, "d", {S_IFDIR | S_ISGID | 0775, 0, ""}, {1, 50}, Tick());
  const auto file = ns().Create(dir->ino, "f", {S_IFREG | 0644, 0, ""}, {2, 60}, Tick());
  const auto sub = ns().Create(dir->ino, "s", {S_IFDIR | 0755, 0, ""}, {2, 60}, Tick());
  EXPECT_EQ(file->gid, 50u);
  EXPECT_EQ(file->mode & S_ISGID, 0u);
  EXPECT_EQ(sub->gid, 50u);
  EXPECT_NE(sub->mode & S_ISGID, 0u);
}

TEST_F(NamesTest, Create_RefusesBadNamesAndPlaces) {
  const InodeNumber file = Make(kRootInode, "f");
  EXPECT_EQ(CreateCode(kRootInode, "f"), EEXIST);
  EXPECT_EQ(CreateCode(kRootInode, ""), ENOENT);
  EXPECT_EQ(CreateCode(kRootInode, "a/b"), EINVAL);
  EXPECT_EQ(CreateCode(kRootInode, std::string_view("a\0b", 3)), EINVAL);
  EXPECT_EQ(CreateCode(kRootInode, "."), EINVAL);
  EXPECT_EQ(CreateCode(kRootInode, ".."), EINVAL);
  EXPECT_EQ(CreateCode(kRootInode, std::string(256, 'x')), ENAMETOOLONG);
  EXPECT_EQ(CreateCode(kRootInode, std::string(255, 'x')), 0);
  EXPECT_EQ(CreateCode(kRootInode, "\xff\x01 \n"), 0);
  EXPECT_EQ(CreateCode(file, "x"), ENOTDIR);
  EXPECT_EQ(CreateCode(9999999, "x"), ESTALE);
  EXPECT_EQ(CreateCode(kRootInode, "x", S_IFMT), EINVAL);
}

TEST_F(NamesTest, Symlink_KeepsItsTarget) {
  const std::string target(4095, 't');
  const auto link = ns().Create(kRootInode, "l", {S_IFLNK | 0777, 0, target}, {}, Tick());
  ASSERT_TRUE(link.ok());
  EXPECT_EQ(link->size, 4095u);
  EXPECT_EQ(*ns().Readlink(link->ino), target);
  EXPECT_EQ(ns().Create(kRootInode, "m", {S_IFLNK, 0, target + "t"}, {}, Tick()).status().code(), ENAMETOOLONG);
  EXPECT_EQ(ns().Create(kRootInode, "m", {S_IFLNK, 0, ""}, {}, Tick()).status().code(), ENOENT);
  EXPECT_EQ(ns().Create(kRootInode, "m", {S_IFREG, 0, "t"}, {}, Tick()).status().code(), EINVAL);
  EXPECT_EQ(ns().Readlink(kRootInode).status().code(), EINVAL);
}

TEST_F(NamesTest, Lookup_Errors) {
  const InodeNumber file = Make(kRootInode, "f");
  EXPECT_EQ(ns().Lookup(kRootInode, "none").status().code(), ENOENT);
  EXPECT_EQ(ns().Lookup(file, "x").status().code(), ENOTDIR);
  EXPECT_EQ(ns().Lookup(12345, "x").status().code(), ESTALE);
  EXPECT_EQ(ns().Lookup(kRootInode, std::string(256, 'x')).status().code(), ENAMETOOLONG);
  EXPECT_EQ(ns().GetAttr(12345).status().code(), ESTALE);
}

TEST_F(NamesTest, Lookup_DotIsTheInodeItself_WhileItHasAName) {
  const InodeNumber dir = MakeDir(kRootInode, "d");
  const InodeNumber file = Make(dir, "f");
  EXPECT_EQ(At(file, "."), file);
  EXPECT_EQ(At(dir, "."), dir);
  EXPECT_EQ(At(dir, ".."), kRootInode);
  EXPECT_EQ(At(kRootInode, ".."), kRootInode);
  EXPECT_EQ(ns().Lookup(file, "..").status().code(), ENOTDIR);
  ASSERT_TRUE(ns().Unlink(dir, "f", kOpen, Tick()).ok());
  EXPECT_EQ(ns().GetAttr(file)->nlink, 0u) << "it is open";
  EXPECT_EQ(ns().Lookup(file, ".").status().code(), ESTALE);
  ASSERT_TRUE(ns().ReleaseOrphan(file).ok());
  EXPECT_EQ(ns().Lookup(file, ".").status().code(), ESTALE);
  ASSERT_TRUE(ns().Rmdir(kRootInode, "d", kNotOpen, Tick()).ok());
  EXPECT_EQ(ns().Lookup(dir, ".").status().code(), ESTALE);
  EXPECT_EQ(ns().Lookup(dir, "..").status().code(), ESTALE);
}

TEST_F(NamesTest, Link_CountsNames) {
  const InodeNumber file = Make(kRootInode, "f");
  const InodeNumber dir = MakeDir(kRootInode, "d");
  const auto linked = ns().Link(file, dir, "g", Nanoseconds(5000));
  ASSERT_TRUE(linked.ok());
  EXPECT_EQ(linked->nlink, 2u);
  EXPECT_EQ(linked->ctime, Nanoseconds(5000));
  EXPECT_EQ(At(dir, "g"), file);
  EXPECT_EQ(ns().Link(file, dir, "g", Tick()).status().code(), EEXIST);
  EXPECT_EQ(ns().Link(dir, dir, "h", Tick()).status().code(), EPERM);
  EXPECT_EQ(ns().Link(4711, dir, "h", Tick()).status().code(), ESTALE);
}

TEST_F(NamesTest, Unlink_LastNameRemovesTheInode) {
  const InodeNumber file = Make(kRootInode, "f");
  ASSERT_TRUE(ns().Link(file, kRootInode, "g", Tick()).ok());
  auto removed = ns().Unlink(kRootInode, "f", kNotOpen, Tick());
  ASSERT_TRUE(removed.ok());
  EXPECT_FALSE(removed->last_link);
  EXPECT_EQ(Get(file).nlink, 1u);
  removed = ns().Unlink(kRootInode, "g", kNotOpen, Tick());
  ASSERT_TRUE(removed.ok());
  EXPECT_TRUE(removed->last_link);
  EXPECT_FALSE(removed->orphaned);
  EXPECT_EQ(removed->ino, file);
  EXPECT_EQ(ns().GetAttr(file).status().code(), ESTALE);
  EXPECT_EQ(ns().StatFs().inodes, 1u);
}

TEST_F(NamesTest, Unlink_Errors) {
  MakeDir(kRootInode, "d");
  const InodeNumber file = Make(kRootInode, "f");
  EXPECT_EQ(ns().Unlink(kRootInode, "d", kNotOpen, Tick()).status().code(), EISDIR);
  EXPECT_EQ(ns().Unlink(kRootInode, "none", kNotOpen, Tick()).status().code(), ENOENT);
  EXPECT_EQ(ns().Unlink(file, "x", kNotOpen, Tick()).status().code(), ENOTDIR);
}

TEST_F(NamesTest, Unlink_KeepOpenMakesAnOrphanUntilReleased) {
  const InodeNumber file = Make(kRootInode, "f");
  ASSERT_EQ(Allocate(file, 0, 10), 0);
  const auto removed = ns().Unlink(kRootInode, "f", kOpen, Tick());
  ASSERT_TRUE(removed.ok());
  EXPECT_TRUE(removed->orphaned);
  EXPECT_EQ(Get(file).nlink, 0u);
  EXPECT_EQ(Allocate(file, 10, 10), 0);
  EXPECT_EQ(ns().Link(file, kRootInode, "g", Tick()).status().code(), ENOENT);
  EXPECT_THAT(*ns().ListOrphans(0, 10), ElementsAre(file));
  EXPECT_THAT(*ns().ListOrphans(file, 10), IsEmpty());
  EXPECT_THAT(Problems(store()), IsEmpty());

  Reopen();
  EXPECT_TRUE(ns().ReleaseOrphan(file).ok());
  EXPECT_THAT(*ns().ListOrphans(0, 10), IsEmpty());
  EXPECT_EQ(ns().ReleaseOrphan(file).code(), ESTALE);
  EXPECT_EQ(ns().ReleaseOrphan(kRootInode).code(), EINVAL);
  EXPECT_EQ(ns().StatFs().pending_pages, 20u);
}

TEST_F(NamesTest, CreateUnnamed_IsAnOrphanUntilItGetsAName) {
  const auto dir = ns().Create(kRootInode, "d", {S_IFDIR | S_ISGID | 0775, 0, ""}, {1, 50}, Tick());
  const Attributes before = Get(dir->ino);
  const auto made = ns().CreateUnnamed(dir->ino, {S_IFREG | 0640, 0, ""}, {2, 60}, Nanoseconds(7777), true);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ(made->nlink, 0u);
  EXPECT_EQ(made->mode, S_IFREG | 0640u);
  EXPECT_EQ(made->uid, 2u);
  EXPECT_EQ(made->gid, 50u) << "the directory's";
  EXPECT_EQ(Get(dir->ino), before);
  EXPECT_THAT(*ns().ListOrphans(0, 10), ElementsAre(made->ino));
  EXPECT_EQ(ns().StatFs().inodes, 3u);
  EXPECT_THAT(Problems(store()), IsEmpty());
  Reopen();
  EXPECT_EQ(ns().Link(made->ino, kRootInode, "f", Tick()).status().code(), ENOENT);
  EXPECT_EQ(ns().LinkUnnamed(made->ino, kRootInode, "d", Tick()).status().code(), EEXIST);
  const auto linked = ns().LinkUnnamed(made->ino, kRootInode, "f", Tick());
  ASSERT_TRUE(linked.ok()) << linked.status().ToString();
  EXPECT_EQ(linked->nlink, 1u);
  EXPECT_EQ(At(kRootInode, "f"), made->ino);
  EXPECT_THAT(*ns().ListOrphans(0, 10), IsEmpty());
  EXPECT_EQ(ns().ReleaseOrphan(made->ino).code(), EINVAL);
  EXPECT_EQ(ns().LinkUnnamed(made->ino, kRootInode, "g", Tick())->nlink, 2u);
  // Once it has had a name, it is like any other.
  ASSERT_TRUE(ns().Unlink(kRootInode, "f", kOpen, Tick()).ok());
  ASSERT_TRUE(ns().Unlink(kRootInode, "g", kOpen, Tick()).ok());
  EXPECT_EQ(ns().LinkUnnamed(made->ino, kRootInode, "h", Tick()).status().code(), ENOENT);
  EXPECT_TRUE(ns().ReleaseOrphan(made->ino).ok());
}

TEST_F(NamesTest, CreateUnnamed_Refuses) {
  const InodeNumber file = Make(kRootInode, "f");
  const auto code = [&](InodeNumber parent, uint32_t mode) {
    return ns().CreateUnnamed(parent, {mode, 0, ""}, {}, Tick(), true).status().code();
  };
  EXPECT_EQ(code(file, S_IFREG | 0644), ENOTDIR);
  EXPECT_EQ(code(4711, S_IFREG | 0644), ESTALE);
  EXPECT_EQ(code(kRootInode, S_IFDIR | 0755), EINVAL);
  const InodeNumber dir = MakeDir(kRootInode, "d");
  ASSERT_TRUE(ns().Rmdir(kRootInode, "d", kOpen, Tick()).ok());
  EXPECT_EQ(code(dir, S_IFREG | 0644), ENOENT);
  const auto nameless = ns().CreateUnnamed(kRootInode, {S_IFREG | 0644, 0, ""}, {}, Tick(), false);
  EXPECT_EQ(ns().LinkUnnamed(nameless->ino, kRootInode, "g", Tick()).status().code(), ENOENT);
  EXPECT_TRUE(ns().ReleaseOrphan(nameless->ino).ok());
  EXPECT_TRUE(ns().ReleaseOrphan(dir).ok());
}

TEST_F(NamesTest, Rmdir_OnlyEmptyDirectories) {
  const InodeNumber dir = MakeDir(kRootInode, "d");
  Make(dir, "f");
  Make(kRootInode, "f");
  EXPECT_EQ(ns().Rmdir(kRootInode, "d", kNotOpen, Tick()).status().code(), ENOTEMPTY);
  EXPECT_EQ(ns().Rmdir(kRootInode, "f", kNotOpen, Tick()).status().code(), ENOTDIR);
  EXPECT_EQ(ns().Rmdir(kRootInode, "none", kNotOpen, Tick()).status().code(), ENOENT);
  EXPECT_EQ(ns().Rmdir(dir, ".", kNotOpen, Tick()).status().code(), EINVAL);
  EXPECT_EQ(ns().Rmdir(dir, "..", kNotOpen, Tick()).status().code(), ENOTEMPTY);
  ASSERT_TRUE(ns().Unlink(dir, "f", kNotOpen, Tick()).ok());
  ASSERT_TRUE(ns().Rmdir(kRootInode, "d", kNotOpen, Tick()).ok());
  EXPECT_EQ(Get(kRootInode).nlink, 2u);
  EXPECT_EQ(ns().GetAttr(dir).status().code(), ESTALE);
}

TEST_F(NamesTest, Rmdir_OpenDirectoryTakesNoNewNames) {
  const InodeNumber dir = MakeDir(kRootInode, "d");
  const auto removed = ns().Rmdir(kRootInode, "d", kOpen, Tick());
  ASSERT_TRUE(removed.ok());
  EXPECT_TRUE(removed->orphaned);
  EXPECT_EQ(Get(dir).nlink, 0u);
  EXPECT_EQ(CreateCode(dir, "x"), ENOENT);
  EXPECT_EQ(ns().Parent(dir).status().code(), ESTALE);
  EXPECT_THAT(*ns().ReadDir(dir, 0, 10), IsEmpty());
  EXPECT_TRUE(ns().ReleaseOrphan(dir).ok());
}

// They have looked at the clock before others that were carried out before them.
TEST_F(NamesTest, ChangesInAnotherOrderThanTheirTimes_NoTimeGoesBack) {
  const Nanoseconds late(90000);
  const Nanoseconds early(50000);
  const InodeNumber dir = MakeDir(kRootInode, "d");
  const InodeNumber file = Make(dir, "f");
  ASSERT_TRUE(ns().Create(dir, "new", {}, {}, late).ok());
  ASSERT_TRUE(ns().SetXattr(file, "user.a", "", XattrMode::kEither, late).ok());
  ASSERT_TRUE(ns().SetSizeAndTimes(file, 10, SizeRule::kIfLarger, late, late).ok());
  const auto expect_late = [&](InodeNumber ino) {
    EXPECT_EQ(std::clamp(Get(ino).mtime, late, late + Nanoseconds(2)), Get(ino).mtime);
    EXPECT_EQ(std::clamp(Get(ino).ctime, late, late + Nanoseconds(2)), Get(ino).ctime)
        << "no two changes of contents have the same";
  };
  const auto expect_both = [&](const Status& status, const char* what) {
    SCOPED_TRACE(what);
    EXPECT_TRUE(status.ok()) << status.ToString();
    expect_late(dir);
    expect_late(file);
  };
  expect_both(ns().Create(dir, "newer", {}, {}, early).status(), "create");
  expect_both(ns().Link(file, dir, "g", early).status(), "link");
  expect_both(ns().Unlink(dir, "g", kNotOpen, early).status(), "unlink");
  expect_both(ns().Rename(dir, "f", dir, "h", RenameMode::kReplace, kNotOpen, early).status(), "rename");
  expect_both(ns().Rename(dir, "h", dir, "new", RenameMode::kExchange, kNotOpen, early).status(), "exchange");
  expect_both(ns().SetXattr(file, "user.b", "", XattrMode::kEither, early), "set attribute");
  expect_both(ns().RemoveXattr(file, "user.b", early), "remove attribute");
  expect_both(ns().AllocateExtents(file, 0, 4, std::nullopt, early).status(), "allocate");
  expect_both(ns().PunchExtents(file, 0, 2, early).status(), "punch");
  expect_both(ns().Truncate(file, 5, early).status(), "truncate");
  AttributeChange change;
  change.mode = 0600;
  expect_both(ns().SetAttr(file, change, early).status(), "set mode");
  ASSERT_TRUE(MakeDir(dir, "sub") != 0);
  expect_both(ns().Rmdir(dir, "sub", kNotOpen, early).status(), "remove directory");
}

TEST_F(NamesTest, MtimeThatIsWishedFor_LastsUntilTheNextChange) {
  const InodeNumber file = Make(kRootInode, "f");
  for (const Nanoseconds wished : {Nanoseconds(5), Nanoseconds(1000000)}) {
    AttributeChange wish;
    wish.mtime = wished;
    ASSERT_TRUE(ns().SetAttr(file, wish, Nanoseconds(60000)).ok());
    EXPECT_EQ(Get(file).mtime, wished);
    AttributeChange other;
    other.mode = 0600;
    ASSERT_TRUE(ns().SetAttr(file, other, Nanoseconds(61000)).ok());
    EXPECT_EQ(Get(file).mtime, wished);
    ASSERT_TRUE(ns().Truncate(file, 5, Nanoseconds(62000)).ok());
    EXPECT_EQ(Get(file).mtime, Get(file).ctime);
    EXPECT_LE(Get(file).mtime, Nanoseconds(62001)) << "one more, where the clock stands still";
  }
}

TEST_F(NamesTest, SetAttr_ChangesWhatIsNamedOnly) {
  const InodeNumber file = Make(kRootInode, "f");
  const Attributes before = Get(file);
  AttributeChange change;
  change.mode = 04755;
  change.mtime = Nanoseconds(-123456789);
  const auto changed = ns().SetAttr(file, change, Nanoseconds(9000));
  ASSERT_TRUE(changed.ok());
  Attributes expected = before;
  expected.mode = S_IFREG | 04755;
  expected.mtime = Nanoseconds(-123456789);
  expected.ctime = Nanoseconds(9000);
  EXPECT_EQ(*changed, expected);
  EXPECT_EQ(Get(file), expected);
  change = {};
  change.uid = 7;
  change.gid = 8;
  change.atime = Nanoseconds(3);
  EXPECT_EQ(ns().SetAttr(file, change, Tick())->uid, 7u);
  EXPECT_EQ(Get(file).gid, 8u);
  EXPECT_EQ(Get(file).atime, Nanoseconds(3));
  EXPECT_EQ(Get(file).mode, S_IFREG | 04755u);
}

}  // namespace
}  // namespace termfs::metadata
