// SPDX-License-Identifier: Apache-2.0
//
// Names and attributes: what a file is called, and what is known of it beside its bytes.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <set>

#include "tests/unit/fs/file_cases.h"

namespace termfs::fs {

using client::OpenFile;

TEST_P(Files, Write_ClearsSetIdBitsWhenToldTo) {
  const auto volume = Make();
  Mount a(*volume);
  Mount b(*volume);
  OpenFile* file = a.Create("f");
  OpenFile* other = b.Open("f");
  const auto write = [&](uint64_t offset, bool clears) {
    return a.fs->Write(*a.lane, file, offset, std::as_bytes(std::span("x", 1)), {.clears_privileges = clears}).ok();
  };
  // Set by another client while the file is open; cleared by a write that grows the file and by one that does not.
  for (const uint64_t offset : {5000, 0}) {
    for (const auto& [mode, after] : {std::pair{06775U, 0775U}, {06765U, 02765U}, {0644U, 0644U}}) {
      client::SetAttributes set;
      set.mode = mode;
      ASSERT_TRUE(b.fs->Set(*b.lane, b.InodeOf("f"), set, nullptr).ok());
      ASSERT_TRUE(write(offset, false));
      EXPECT_EQ(a.Stat(a.InodeOf("f")).mode & 07777, mode);
      ASSERT_TRUE(write(offset, true));
      EXPECT_EQ(b.Stat(b.InodeOf("f")).mode & 07777, after);
    }
  }
  a.Close(file);
  b.Close(other);
}

// As chown and truncate ask for it: of the mode that it is when it is carried out.
TEST_P(Files, Set_ClearsSetIdBitsWhenToldTo) {
  const auto volume = Make();
  Mount a(*volume);
  Mount b(*volume);
  OpenFile* file = a.Create("f");
  const uint64_t ino = a.InodeOf("f");
  const auto set_mode = [&](uint32_t mode) {
    client::SetAttributes set;
    set.mode = mode;
    ASSERT_TRUE(b.fs->Set(*b.lane, ino, set, nullptr).ok());
  };
  for (const auto& [mode, after] : {std::pair{06775U, 0775U}, {06765U, 02765U}, {0644U, 0644U}}) {
    client::SetAttributes owner;
    owner.uid = 0;
    owner.clears_privileges = true;
    set_mode(mode);
    EXPECT_EQ(a.fs->Set(*a.lane, ino, owner, nullptr)->mode & 07777, after);
    client::SetAttributes size;
    size.size = mode;
    size.clears_privileges = true;
    set_mode(mode);
    EXPECT_EQ(a.fs->Set(*a.lane, ino, size, file)->mode & 07777, after);
    EXPECT_EQ(b.Stat(ino).size, mode);
    client::SetAttributes named;
    named.mode = mode;
    named.clears_privileges = true;
    EXPECT_EQ(a.fs->Set(*a.lane, ino, named, nullptr)->mode & 07777, after);
    EXPECT_EQ(b.Stat(ino).mode & 07777, after);
    client::SetAttributes group;
    group.gid = 0;
    group.clears_group_id = true;
    set_mode(mode);
    EXPECT_EQ(a.fs->Set(*a.lane, ino, group, nullptr)->mode & 07777, mode & ~02000U);
  }
  a.Close(file);
}

TEST_P(Files, Create_ExistingIsOpenedUnlessExclusive) {
  const auto volume = Make();
  Mount a(*volume);
  OpenFile* file = a.Create("f");
  ASSERT_TRUE(a.Write(file, 0, "old").ok());
  EXPECT_EQ(a.fs->Create(*a.lane, {0, 0}, kRootInode, "f", 0644, O_RDWR | O_CREAT | O_EXCL).status().code(), EEXIST);
  OpenFile* again = a.Create("f", O_RDWR | O_CREAT);
  EXPECT_EQ(a.Read(again, 0, 10), "old");
  a.Close(again);
  again = a.Create("f", O_RDWR | O_CREAT | O_TRUNC);
  EXPECT_EQ(a.Read(file, 0, 10), "");
  a.Close(again);
  a.Close(file);
}

// Another's kernel saw no such name: it has checked nothing, and will not once the create has succeeded.
TEST_P(Files, Create_ExistingOfAnother_IsOpenedOnlyWhereItsModeLetsIn) {
  const auto volume = Make();
  Mount a(*volume);
  const client::Caller owner{1000, 1000};
  const client::Caller of_group{2000, 1000};
  const client::Caller other{2000, 2000};
  int files = 0;
  const auto second = [&](uint32_t mode, const client::Caller& who, int flags) {
    const std::string name = "f" + std::to_string(files++);
    const auto made = a.fs->Create(*a.lane, owner, kRootInode, name, mode, O_WRONLY | O_CREAT);
    EXPECT_TRUE(made.ok());
    a.Close(made->second);
    const auto again = a.fs->Create(*a.lane, who, kRootInode, name, 0644, flags | O_CREAT);
    if (again.ok()) {
      a.Close(again->second);
    }
    return again.status().code();
  };
  EXPECT_EQ(second(0600, other, O_RDONLY), ESTALE);
  EXPECT_EQ(second(0600, of_group, O_RDONLY), ESTALE);
  EXPECT_EQ(second(0600, owner, O_RDWR), 0);
  EXPECT_EQ(second(0400, owner, O_RDWR), ESTALE);
  EXPECT_EQ(second(0640, of_group, O_RDONLY), 0);
  EXPECT_EQ(second(0640, of_group, O_RDWR), ESTALE);
  EXPECT_EQ(second(0644, other, O_RDONLY), 0);
  EXPECT_EQ(second(0644, other, O_RDONLY | O_TRUNC), ESTALE);
  EXPECT_EQ(second(0604, other, O_RDONLY), ESTALE) << "it may be in the group, which is kept out";
}

TEST_P(Files, Names_AllTypesAndErrors) {
  const auto volume = Make();
  Mount a(*volume);
  auto& fs = *a.fs;
  auto& lane = *a.lane;
  const auto dir = fs.MakeDirectory(lane, {1, 2}, kRootInode, "d", 0755);
  ASSERT_TRUE(dir.ok());
  EXPECT_EQ(dir->uid, 1u);
  EXPECT_EQ(dir->gid, 2u);
  EXPECT_EQ(dir->mode, static_cast<uint32_t>(S_IFDIR | 0755));
  EXPECT_EQ(fs.MakeDirectory(lane, {0, 0}, kRootInode, "d", 0755).status().code(), EEXIST);
  EXPECT_TRUE(fs.MakeNode(lane, {0, 0}, dir->ino, "fifo", S_IFIFO | 0600, 0).ok());
  const auto device = fs.MakeNode(lane, {0, 0}, dir->ino, "null", S_IFCHR | 0666, 0x103);
  ASSERT_TRUE(device.ok());
  EXPECT_EQ(device->rdev, 0x103u);
  const auto link = fs.Symlink(lane, {0, 0}, dir->ino, "link", "../" + std::string(4000, 't'));
  ASSERT_TRUE(link.ok());
  EXPECT_EQ(*fs.ReadLink(lane, link->ino), "../" + std::string(4000, 't'));
  EXPECT_EQ(fs.ReadLink(lane, dir->ino).status().code(), EINVAL);
  OpenFile* file = a.Create("f");
  const uint64_t ino = a.InodeOf("f");
  EXPECT_TRUE(fs.Link(lane, ino, dir->ino, "hard").ok());
  EXPECT_EQ(a.Stat(ino).nlink, 2u);
  EXPECT_EQ(fs.RemoveDirectory(lane, kRootInode, "d").code(), ENOTEMPTY);
  EXPECT_EQ(fs.Unlink(lane, kRootInode, "d").code(), EISDIR);
  EXPECT_EQ(fs.Lookup(lane, kRootInode, "none").status().code(), ENOENT);
  EXPECT_EQ(fs.Lookup(lane, ino, "none").status().code(), ENOTDIR);
  EXPECT_EQ(fs.Lookup(lane, kRootInode, std::string(256, 'n')).status().code(), ENAMETOOLONG);
  EXPECT_EQ(fs.Open(lane, dir->ino, O_RDONLY).status().code(), EISDIR);
  EXPECT_EQ(fs.Lookup(lane, 999999, "x").status().code(), ESTALE);
  EXPECT_EQ(fs.Rename(lane, kRootInode, "f", dir->ino, "hard", RENAME_NOREPLACE).code(), EEXIST);
  EXPECT_EQ(fs.Rename(lane, kRootInode, "f", dir->ino, "null", 0x80).code(), EINVAL);
  EXPECT_TRUE(fs.Rename(lane, kRootInode, "f", dir->ino, "null", RENAME_EXCHANGE).ok());
  EXPECT_EQ(a.InodeOf("f"), device->ino);
  a.Close(file);
}

TEST_P(Files, RenameLeavingWhiteout_IsOneChange) {
  const auto volume = Make();
  Mount a(*volume);
  Mount b(*volume);
  auto& fs = *a.fs;
  auto& lane = *a.lane;
  a.Close(a.Create("f"));
  a.Close(a.Create("there"));
  const uint64_t ino = a.InodeOf("f");
  EXPECT_EQ(fs.RenameLeavingWhiteout(lane, {7, 8}, kRootInode, "f", kRootInode, "there", RENAME_NOREPLACE).code(),
            EEXIST);
  EXPECT_EQ(fs.RenameLeavingWhiteout(lane, {7, 8}, kRootInode, "none", kRootInode, "g", 0).code(), ENOENT);
  EXPECT_EQ(fs.RenameLeavingWhiteout(lane, {7, 8}, kRootInode, "f", kRootInode, "there", RENAME_EXCHANGE).code(),
            EINVAL);
  EXPECT_EQ(fs.Rename(lane, kRootInode, "f", kRootInode, "g", RENAME_WHITEOUT).code(), EINVAL) << "whose is it?";
  ASSERT_TRUE(fs.RenameLeavingWhiteout(lane, {7, 8}, kRootInode, "f", kRootInode, "g", RENAME_NOREPLACE).ok());
  for (Mount* mount : {&a, &b}) {
    EXPECT_EQ(mount->InodeOf("g"), ino);
    const auto whiteout = mount->fs->Lookup(*mount->lane, kRootInode, "f");
    ASSERT_TRUE(whiteout.ok()) << whiteout.status().ToString();
    EXPECT_EQ(whiteout->mode, static_cast<uint32_t>(S_IFCHR));
    EXPECT_EQ(whiteout->rdev, 0u);
    EXPECT_EQ(whiteout->uid, 7u);
    EXPECT_EQ(whiteout->gid, 8u);
    EXPECT_EQ(whiteout->nlink, 1u);
  }
  ASSERT_TRUE(fs.RenameLeavingWhiteout(lane, {7, 8}, kRootInode, "g", kRootInode, "there", 0).ok());
  EXPECT_EQ(b.InodeOf("there"), ino);
  EXPECT_EQ(b.fs->Lookup(*b.lane, kRootInode, "g")->mode, static_cast<uint32_t>(S_IFCHR));
  EXPECT_TRUE(fs.Rename(lane, kRootInode, "there", kRootInode, "g", 0).ok()) << "over the whiteout";
  EXPECT_EQ(b.InodeOf("g"), ino);
}

TEST_P(Files, Lookup_OfAnInodeByItsNumber) {
  const auto volume = Make();
  Mount a(*volume);
  Mount b(*volume);
  const auto dir = a.fs->MakeDirectory(*a.lane, {0, 0}, kRootInode, "d", 0755);
  ASSERT_TRUE(dir.ok());
  OpenFile* const file = a.Create("f");
  const uint64_t ino = a.InodeOf("f");
  ASSERT_TRUE(a.fs->Rename(*a.lane, kRootInode, "f", dir->ino, "g", 0).ok());
  const auto found = b.fs->Lookup(*b.lane, ino, ".");
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_EQ(found->ino, ino);
  EXPECT_EQ(found->generation, a.Stat(ino).generation);
  EXPECT_EQ(b.lane->keep(&*found).entry, 0) << "\".\" is no name";
  EXPECT_EQ(b.fs->Lookup(*b.lane, dir->ino, ".")->ino, dir->ino);
  EXPECT_EQ(b.fs->Lookup(*b.lane, dir->ino, "..")->ino, kRootInode);
  ASSERT_TRUE(a.fs->Unlink(*a.lane, dir->ino, "g").ok());
  EXPECT_EQ(b.fs->Lookup(*b.lane, ino, ".").status().code(), ESTALE) << "though it is open";
  a.Close(file);
  EXPECT_EQ(b.fs->Lookup(*b.lane, ino, ".").status().code(), ESTALE);
  EXPECT_EQ(b.fs->Lookup(*b.lane, 4711, ".").status().code(), ESTALE);
}

TEST_P(Files, Attributes_TimesAndOwners) {
  const auto volume = Make();
  Mount a(*volume);
  Mount b(*volume);
  OpenFile* file = a.Create("f");
  const uint64_t ino = a.InodeOf("f");
  client::SetAttributes what;
  what.mode = 0600;
  what.uid = 10;
  what.gid = 20;
  what.atime = -5;
  what.mtime = 1234567890123456789;
  ASSERT_TRUE(a.fs->Set(*a.lane, ino, what, nullptr).ok());
  Attributes seen = b.Stat(ino);
  EXPECT_EQ(seen.mode, static_cast<uint32_t>(S_IFREG | 0600));
  EXPECT_EQ(seen.uid, 10u);
  EXPECT_EQ(seen.gid, 20u);
  EXPECT_EQ(seen.atime, -5);
  EXPECT_EQ(seen.mtime, 1234567890123456789);
  ASSERT_TRUE(a.Write(file, 0, "x").ok());
  const Attributes written = b.Stat(ino);
  EXPECT_GT(written.mtime, seen.mtime);
  EXPECT_GE(written.ctime, seen.ctime);
  ASSERT_TRUE(a.Write(file, 0, "y").ok());  // in memory only, so far
  const Attributes again = b.Stat(ino);
  EXPECT_GE(again.mtime, written.mtime);
  what = {};
  what.mtime = 77;
  ASSERT_TRUE(b.fs->Set(*b.lane, ino, what, nullptr).ok());
  a.Close(file);
  EXPECT_EQ(b.Stat(ino).mtime, 77) << "what a write left to be stored must not come back";
}

TEST_P(Files, Attributes_TimesOfWritesSurviveClose) {
  const auto volume = Make();
  int64_t mtime;
  {
    Mount a(*volume);
    OpenFile* file = a.Create("f");
    ASSERT_TRUE(a.Write(file, 0, "x").ok());
    ASSERT_TRUE(a.Write(file, 0, "y").ok());
    mtime = a.Stat(a.InodeOf("f")).mtime;
    a.Close(file);
    EXPECT_EQ(a.Stat(a.InodeOf("f")).mtime, mtime);
  }
  volume->Restart();
  Mount a(*volume);
  EXPECT_EQ(a.Stat(a.InodeOf("f")).mtime, mtime);
}

TEST_P(Files, ReadDirectory_PagesThroughEverythingOnce) {
  const auto volume = Make();
  Mount a(*volume);
  std::set<std::string> names;
  for (int i = 0; i < 500; ++i) {
    names.insert("entry" + std::to_string(i) + std::string(static_cast<size_t>(i) % 50, 'x'));
  }
  for (const std::string& name : names) {
    ASSERT_TRUE(a.fs->MakeNode(*a.lane, {0, 0}, kRootInode, name, 0644, 0).ok());
  }
  for (const bool plus : {false, true}) {
    std::multiset<std::string> seen;
    for (uint64_t cursor = 0;;) {
      const auto batch = a.fs->ReadDirectory(*a.lane, kRootInode, cursor, 4096, plus);
      ASSERT_TRUE(batch.ok()) << batch.status().ToString();
      if (batch->empty()) {
        break;
      }
      for (const DirectoryEntry& entry : *batch) {
        seen.insert(entry.name);
        if (plus) {
          EXPECT_EQ(entry.attributes.ino, entry.ino);
        }
      }
      cursor = batch->back().cursor;
    }
    names.insert({".", ".."});
    EXPECT_EQ(seen, std::multiset<std::string>(names.begin(), names.end()));
  }
}

TEST_P(Files, Xattr_SetGetListRemove) {
  const auto volume = Make();
  Mount a(*volume);
  a.Close(a.Create("f"));
  const uint64_t ino = a.InodeOf("f");
  const std::string big(60000, 'v');
  const auto set = [&](std::string_view name, std::string_view value, int flags) {
    return a.fs->SetXattr(*a.lane, ino, name, std::as_bytes(std::span(value)), flags, false).code();
  };
  EXPECT_EQ(set("user.big", big, XATTR_CREATE), 0);
  EXPECT_EQ(set("user.big", big, XATTR_CREATE), EEXIST);
  EXPECT_EQ(set("user.none", "", XATTR_REPLACE), ENODATA);
  EXPECT_EQ(set("user.empty", "", 0), 0);
  EXPECT_EQ(set("user.too", std::string(70000, 'v'), 0), E2BIG);
  const auto value = a.fs->GetXattr(*a.lane, ino, "user.big");
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(value->data()), value->size()), big);
  EXPECT_TRUE(a.fs->GetXattr(*a.lane, ino, "user.empty")->empty());
  EXPECT_EQ(a.fs->ListXattr(*a.lane, ino)->size(), 2u);
  EXPECT_TRUE(a.fs->RemoveXattr(*a.lane, ino, "user.big").ok());
  EXPECT_EQ(a.fs->GetXattr(*a.lane, ino, "user.big").status().code(), ENODATA);
}

}  // namespace termfs::fs
