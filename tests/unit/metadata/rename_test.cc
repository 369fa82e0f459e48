// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <thread>

#include "tests/unit/metadata/test_volume.h"

namespace termfs::metadata {
namespace {

class RenameTest : public VolumeTest {
 protected:
  int Move(InodeNumber from, std::string_view old_name, InodeNumber to, std::string_view new_name,
           RenameMode mode = RenameMode::kReplace) {
    last_ = {};
    const auto renamed = ns().Rename(from, old_name, to, new_name, mode, kNotOpen, Tick());
    if (renamed.ok()) {
      last_ = *renamed;
    }
    return renamed.status().code();
  }
  Renamed last_;
  const InodeNumber a_ = MakeDir(kRootInode, "a");
  const InodeNumber b_ = MakeDir(kRootInode, "b");
};

TEST_F(RenameTest, File_MovesAndTouchesBothParents) {
  const InodeNumber file = Make(a_, "f");
  ASSERT_TRUE(ns().Rename(a_, "f", b_, "g", RenameMode::kReplace, kNotOpen, Nanoseconds(7777)).ok());
  EXPECT_EQ(At(a_, "f"), 0u);
  EXPECT_EQ(At(b_, "g"), file);
  EXPECT_EQ(Get(a_).mtime, Nanoseconds(7777));
  EXPECT_EQ(Get(b_).ctime, Nanoseconds(7777));
  EXPECT_EQ(Get(file).ctime, Nanoseconds(7777));
}

TEST_F(RenameTest, Directory_MovesWithItsParentAndLinks) {
  const InodeNumber dir = MakeDir(a_, "d");
  EXPECT_EQ(Move(a_, "d", b_, "e"), 0);
  EXPECT_EQ(*ns().Parent(dir), b_);
  EXPECT_EQ(Get(a_).nlink, 2u);
  EXPECT_EQ(Get(b_).nlink, 3u);
}

TEST_F(RenameTest, Replace_RemovesTheTarget) {
  const InodeNumber file = Make(a_, "f");
  const InodeNumber old = Make(b_, "g");
  EXPECT_EQ(Move(a_, "f", b_, "g"), 0);
  EXPECT_EQ(last_.ino, file);
  EXPECT_EQ(last_.replaced.ino, old);
  EXPECT_TRUE(last_.replaced.last_link);
  EXPECT_EQ(ns().GetAttr(old).status().code(), ESTALE);
  const InodeNumber dir = MakeDir(a_, "d");
  MakeDir(b_, "e");
  EXPECT_EQ(Move(a_, "d", b_, "e"), 0);
  EXPECT_EQ(At(b_, "e"), dir);
  EXPECT_EQ(Get(b_).nlink, 3u);
}

TEST_F(RenameTest, Replace_KeepOpenMakesAnOrphan) {
  Make(a_, "f");
  const InodeNumber old = Make(a_, "g");
  const auto renamed = ns().Rename(a_, "f", a_, "g", RenameMode::kReplace, kOpen, Tick());
  ASSERT_TRUE(renamed.ok());
  EXPECT_TRUE(renamed->replaced.orphaned);
  EXPECT_EQ(Get(old).nlink, 0u);
}

TEST_F(RenameTest, Whiteout_TakesTheOldNamesPlace) {
  const Caller owner{.uid = 7, .gid = 8};
  const auto move = [&](std::string_view name, InodeNumber to, std::string_view new_name, RenameMode mode) {
    return ns().Rename(a_, name, to, new_name, mode, kNotOpen, Tick(), nullptr, &owner).status().code();
  };
  const InodeNumber file = Make(a_, "f");
  const InodeNumber dir = MakeDir(a_, "d");
  const InodeNumber old = Make(b_, "old");
  const uint64_t inodes = ns().StatFs().inodes;
  EXPECT_EQ(move("f", b_, "old", RenameMode::kNoReplace), EEXIST);
  EXPECT_EQ(move("f", b_, "old", RenameMode::kExchange), EINVAL);
  EXPECT_EQ(move("none", b_, "new", RenameMode::kReplace), ENOENT);
  EXPECT_EQ(ns().StatFs().inodes, inodes);
  EXPECT_EQ(move("f", b_, "old", RenameMode::kReplace), 0);
  EXPECT_EQ(At(b_, "old"), file);
  EXPECT_EQ(ns().GetAttr(old).status().code(), ESTALE);
  EXPECT_EQ(move("d", b_, "d", RenameMode::kNoReplace), 0);
  EXPECT_EQ(*ns().Parent(dir), b_);
  EXPECT_EQ(Get(a_).nlink, 2u);
  EXPECT_EQ(Get(a_).size, 2u) << "names";
  for (const char* name : {"f", "d"}) {
    const auto whiteout = ns().Lookup(a_, name);
    ASSERT_TRUE(whiteout.ok());
    EXPECT_EQ(whiteout->mode, static_cast<uint32_t>(S_IFCHR));
    EXPECT_EQ(whiteout->rdev, 0u);
    EXPECT_EQ(whiteout->uid, 7u);
    EXPECT_EQ(whiteout->gid, 8u);
    EXPECT_EQ(whiteout->nlink, 1u);
  }
  EXPECT_EQ(ns().StatFs().inodes, inodes + 1);
  EXPECT_THAT(Problems(store()), testing::IsEmpty());
}

TEST_F(RenameTest, Replace_RefusesWrongTypesAndFullDirectories) {
  Make(kRootInode, "f");
  Make(b_, "x");
  EXPECT_EQ(Move(kRootInode, "f", kRootInode, "a"), EISDIR);
  EXPECT_EQ(Move(kRootInode, "a", kRootInode, "f"), ENOTDIR);
  EXPECT_EQ(Move(kRootInode, "a", kRootInode, "b"), ENOTEMPTY);
  EXPECT_EQ(Move(kRootInode, "none", kRootInode, "x"), ENOENT);
  EXPECT_EQ(Move(kRootInode, "f", kRootInode, ".."), EINVAL);
}

TEST_F(RenameTest, Directory_CannotMoveBelowItself) {
  const InodeNumber dir = MakeDir(a_, "d");
  const InodeNumber deep = MakeDir(dir, "e");
  EXPECT_EQ(Move(kRootInode, "a", a_, "x"), EINVAL);
  EXPECT_EQ(Move(kRootInode, "a", deep, "x"), EINVAL);
  EXPECT_EQ(Move(dir, "e", kRootInode, "a"), ENOTEMPTY);
  EXPECT_EQ(Move(kRootInode, "a", dir, "e", RenameMode::kExchange), EINVAL);
  EXPECT_EQ(Move(dir, "e", kRootInode, "a", RenameMode::kExchange), EINVAL);
}

TEST_F(RenameTest, SameInode_DoesNothing) {
  const InodeNumber file = Make(a_, "f");
  ASSERT_TRUE(ns().Link(file, b_, "g", Tick()).ok());
  EXPECT_EQ(Move(a_, "f", b_, "g"), 0);
  EXPECT_EQ(last_.ino, 0u);
  EXPECT_EQ(At(a_, "f"), file);
  EXPECT_EQ(Move(a_, "f", a_, "f"), 0);
  EXPECT_EQ(Get(file).nlink, 2u);
}

TEST_F(RenameTest, NoReplace_RefusesAnExistingName) {
  const InodeNumber file = Make(a_, "f");
  Make(b_, "g");
  EXPECT_EQ(Move(a_, "f", b_, "g", RenameMode::kNoReplace), EEXIST);
  EXPECT_EQ(Move(a_, "f", b_, "h", RenameMode::kNoReplace), 0);
  EXPECT_EQ(At(b_, "h"), file);
}

TEST_F(RenameTest, Exchange_SwapsAlsoDifferentTypes) {
  const InodeNumber file = Make(a_, "f");
  const InodeNumber dir = MakeDir(b_, "d");
  EXPECT_EQ(Move(a_, "f", b_, "none", RenameMode::kExchange), ENOENT);
  EXPECT_EQ(Move(a_, "f", b_, "d", RenameMode::kExchange), 0);
  EXPECT_EQ(At(a_, "f"), dir);
  EXPECT_EQ(At(b_, "d"), file);
  EXPECT_EQ(*ns().Parent(dir), a_);
  EXPECT_EQ(Get(a_).nlink, 3u);
  EXPECT_EQ(Get(b_).nlink, 2u);
}

TEST_F(RenameTest, TwoThreads_NeverMakeACircle) {
  // One moves a into b, the other b into a: at most one may be below the other at any time.
  std::atomic<bool> wrong = false;
  const auto mover = [&](std::string name, InodeNumber into) {
    for (int i = 0; i < 300; ++i) {
      const int in =
          ns().Rename(kRootInode, name, into, name, RenameMode::kReplace, kNotOpen, Nanoseconds(i)).status().code();
      const int out =
          ns().Rename(into, name, kRootInode, name, RenameMode::kReplace, kNotOpen, Nanoseconds(i)).status().code();
      wrong = wrong || (in != 0 && in != EINVAL && in != ENOENT) || (out != 0 && out != ENOENT);
    }
  };
  std::thread one(mover, "a", b_);
  std::thread two(mover, "b", a_);
  one.join();
  two.join();
  EXPECT_FALSE(wrong);
}

}  // namespace
}  // namespace termfs::metadata
