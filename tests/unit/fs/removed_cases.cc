// SPDX-License-Identifier: Apache-2.0
//
// What is open stays, and nothing else does, when its last name goes.
#include <fcntl.h>
#include <sys/stat.h>

#include <vector>

#include "tests/unit/eventually.h"
#include "tests/unit/fs/file_cases.h"

namespace termfs::fs {

using client::OpenFile;

namespace {

// The session will end without closing it, as that of a killed client does. It stays reachable: no leak is looked for.
void LeaveOpen(OpenFile* file) {
  static auto* const left_open = new std::vector<OpenFile*>;
  left_open->push_back(file);
}

}  // namespace

TEST_P(Files, Unlink_OpenFileLivesUntilLastClose) {
  const auto volume = Make();
  uint64_t ino;
  {
    Mount a(*volume);
    Mount b(*volume);
    OpenFile* fa = a.Create("f");
    ASSERT_TRUE(a.Write(fa, 0, "alive").ok());
    ino = a.InodeOf("f");
    OpenFile* fb = b.Open("f");
    ASSERT_TRUE(b.Remove("f").ok());
    EXPECT_EQ(a.InodeOf("f"), 0u);
    EXPECT_EQ(a.Stat(ino).nlink, 0u);
    EXPECT_EQ(a.Read(fa, 0, 10), "alive");
    ASSERT_TRUE(b.Write(fb, 5, "!").ok());
    EXPECT_EQ(a.Read(fa, 0, 10), "alive!");
    a.Close(fa);
    EXPECT_EQ(b.Read(fb, 0, 10), "alive!");
    const auto third = a.fs->Open(*a.lane, ino, O_RDONLY);
    ASSERT_TRUE(third.ok()) << "somebody still has it open";
    // Both sessions end without closing, as those of a killed client do.
    LeaveOpen(fb);
    LeaveOpen(*third);
  }
  EXPECT_TRUE(volume->Check().empty());
}

TEST_P(Files, CreateUnnamed_GoesWithItsLastHandle) {
  const auto volume = Make();
  uint64_t killed;
  {
    Mount a(*volume);
    const uint64_t free = a.FreeBytes();
    const auto made = a.fs->CreateUnnamed(*a.lane, {1, 2}, kRootInode, 0640, O_RDWR);
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    const Attributes attributes = made->first;
    OpenFile* const file = made->second;
    EXPECT_EQ(attributes.nlink, 0u);
    EXPECT_EQ(attributes.mode, S_IFREG | 0640u);
    EXPECT_EQ(attributes.uid, 1u);
    EXPECT_EQ(attributes.gid, 2u);
    ASSERT_TRUE(a.Write(file, 0, std::string(100'000, 'x')).ok());
    EXPECT_EQ(a.Read(file, 99'999, 10), "x");
    EXPECT_EQ(a.Stat(attributes.ino).size, 100'000u);
    a.Close(file);
    EXPECT_TRUE(Eventually([&] {
      return a.fs->GetAttributes(*a.lane, attributes.ino).status().code() == ESTALE && a.FreeBytes() == free;
    }));
    const auto left = a.fs->CreateUnnamed(*a.lane, {0, 0}, kRootInode, 0640, O_RDWR);
    ASSERT_TRUE(left.ok());
    ASSERT_TRUE(a.Write(left->second, 0, std::string(100'000, 'x')).ok());
    killed = left->first.ino;
    LeaveOpen(left->second);
  }
  {
    Mount b(*volume);
    EXPECT_TRUE(Eventually([&] { return b.fs->GetAttributes(*b.lane, killed).status().code() == ESTALE; }));
  }
  EXPECT_TRUE(volume->Check().empty());
}

TEST_P(Files, CreateUnnamed_GetsANameFromWhoHasItOpen) {
  const auto volume = Make();
  {
    Mount a(*volume);
    Mount b(*volume);
    const auto made = a.fs->CreateUnnamed(*a.lane, {0, 0}, kRootInode, 0644, O_RDWR);
    ASSERT_TRUE(made.ok());
    const Attributes attributes = made->first;
    OpenFile* const file = made->second;
    ASSERT_TRUE(a.Write(file, 0, "kept").ok());
    EXPECT_EQ(b.fs->Link(*b.lane, attributes.ino, kRootInode, "f").status().code(), ENOENT) << "it is not b's";
    a.Close(a.Create("taken"));
    EXPECT_EQ(a.fs->Link(*a.lane, attributes.ino, kRootInode, "taken").status().code(), EEXIST);
    const auto linked = a.fs->Link(*a.lane, attributes.ino, kRootInode, "f");
    ASSERT_TRUE(linked.ok()) << linked.status().ToString();
    EXPECT_EQ(linked->nlink, 1u);
    a.Close(file);
    OpenFile* seen = b.Open("f");
    EXPECT_EQ(b.Read(seen, 0, 10), "kept");
    b.Close(seen);
    // With a second name that was removed while it is open it is a removed file.
    OpenFile* again = a.Open("f");
    ASSERT_TRUE(b.Remove("f").ok());
    EXPECT_EQ(a.fs->Link(*a.lane, attributes.ino, kRootInode, "g").status().code(), ENOENT);
    a.Close(again);
    EXPECT_TRUE(Eventually([&] { return a.fs->GetAttributes(*a.lane, attributes.ino).status().code() == ESTALE; }));
    const auto exclusive = a.fs->CreateUnnamed(*a.lane, {0, 0}, kRootInode, 0644, O_RDWR | O_EXCL);
    EXPECT_EQ(a.fs->Link(*a.lane, exclusive->first.ino, kRootInode, "g").status().code(), ENOENT);
    a.Close(exclusive->second);
  }
  EXPECT_TRUE(volume->Check().empty());
}

TEST_P(Files, Open_RemovedFileIsStale) {
  const auto volume = Make();
  Mount a(*volume);
  OpenFile* file = a.Create("f");
  const uint64_t ino = a.InodeOf("f");
  a.Close(file);
  ASSERT_TRUE(a.Remove("f").ok());
  EXPECT_TRUE(Eventually([&] {  // the server has heard of the close
    const auto opened = a.fs->Open(*a.lane, ino, O_RDONLY);
    if (opened.ok()) {
      a.Close(*opened);
    }
    return opened.status().code() == ESTALE;
  }));
}

TEST_P(Files, Hold_RemovedDirectoryIsEmptyUntilClosed) {
  const auto volume = Make();
  {
    Mount a(*volume);
    Mount b(*volume);
    const uint64_t removed = b.fs->MakeDirectory(*b.lane, {0, 0}, kRootInode, "d", 0755)->ino;
    const uint64_t replaced = b.fs->MakeDirectory(*b.lane, {0, 0}, kRootInode, "e", 0755)->ino;
    ASSERT_TRUE(b.fs->MakeDirectory(*b.lane, {0, 0}, kRootInode, "f", 0755).ok());
    std::map<uint64_t, OpenFile*> held;
    for (const uint64_t ino : {removed, replaced}) {
      held[ino] = *a.fs->Open(*a.lane, ino, O_PATH);
      EXPECT_EQ(a.fs->ReadDirectory(*a.lane, ino, 0, 4096, false)->size(), 2u);
    }
    ASSERT_TRUE(b.fs->RemoveDirectory(*b.lane, kRootInode, "d").ok());
    ASSERT_TRUE(b.fs->Rename(*b.lane, kRootInode, "f", kRootInode, "e", 0).ok());
    b.lane.reset();
    b.fs.reset();  // the end of its session changes nothing
    for (const uint64_t ino : {removed, replaced}) {
      const Attributes now = a.Stat(ino);
      EXPECT_EQ(now.nlink, 0u);
      EXPECT_TRUE(S_ISDIR(now.mode));
      for (const bool plus : {false, true}) {
        const auto listing = a.fs->ReadDirectory(*a.lane, ino, 0, 4096, plus);
        ASSERT_TRUE(listing.ok()) << listing.status().ToString();
        EXPECT_TRUE(listing->empty());
      }
      EXPECT_EQ(a.fs->MakeNode(*a.lane, {0, 0}, ino, "new", 0644, 0).status().code(), ENOENT);
      const auto again = a.fs->Open(*a.lane, ino, O_PATH);  // as by /proc/self/fd
      ASSERT_TRUE(again.ok()) << again.status().ToString();
      a.Close(*again);
    }
    for (const auto& [ino, file] : held) {
      EXPECT_EQ(a.Stat(ino).nlink, 0u);
      a.Close(file);
      EXPECT_TRUE(Eventually([&, gone = ino] { return a.fs->GetAttributes(*a.lane, gone).status().code() == ESTALE; }));
      EXPECT_EQ(a.fs->Open(*a.lane, ino, O_PATH).status().code(), ESTALE);
    }
  }
  EXPECT_TRUE(volume->Check().empty());
}

TEST_P(Files, Hold_RemovedSpecialFileKeepsItsAttributes) {
  const auto volume = Make();
  {
    Mount a(*volume);
    for (const uint32_t type : {S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK}) {
      Mount b(*volume);
      const uint64_t ino = a.fs->MakeNode(*a.lane, {3, 4}, kRootInode, "s", type | 0640, 0x103)->ino;
      OpenFile* first = *a.fs->Open(*a.lane, ino, O_PATH);
      LeaveOpen(*b.fs->Open(*b.lane, ino, O_PATH));  // until its session ends
      ASSERT_TRUE(b.Remove("s").ok());
      a.Close(first);
      const Attributes now = b.Stat(ino);
      EXPECT_EQ(now.nlink, 0u);
      EXPECT_EQ(now.mode, type | 0640);
      EXPECT_EQ(now.uid, 3u);
      b.lane.reset();
      b.fs.reset();
      EXPECT_TRUE(Eventually([&] { return a.fs->GetAttributes(*a.lane, ino).status().code() == ESTALE; }));
    }
  }
  EXPECT_TRUE(volume->Check().empty());
}

TEST_P(Files, Hold_GivesNoAccessToData) {
  const auto volume = Make();
  Mount a(*volume);
  a.Close(a.Create("f"));
  EXPECT_EQ(a.fs->Open(*a.lane, a.InodeOf("f"), O_PATH).status().code(), EINVAL);
  const uint64_t ino = a.fs->MakeNode(*a.lane, {0, 0}, kRootInode, "fifo", S_IFIFO | 0600, 0)->ino;
  OpenFile* fifo = *a.fs->Open(*a.lane, ino, O_PATH | O_RDWR | O_TRUNC);
  EXPECT_EQ(a.Write(fifo, 0, "x").code(), EBADF);
  EXPECT_EQ(a.fs->Read(*a.lane, fifo, 0, 10).status().code(), EBADF);
  EXPECT_EQ(a.fs->Allocate(*a.lane, fifo, 0, 0, 4096).code(), EBADF);
  EXPECT_EQ(a.fs->Sync(*a.lane, fifo, false).code(), EBADF);
  EXPECT_EQ(a.fs->Open(*a.lane, ino, O_RDONLY).status().code(), EINVAL);
  a.Close(fifo);
}

TEST_P(Files, Rename_OverOpenFileKeepsItReadable) {
  const auto volume = Make();
  Mount a(*volume);
  Mount b(*volume);
  OpenFile* target = a.Create("target");
  ASSERT_TRUE(a.Write(target, 0, "old").ok());
  OpenFile* source = b.Create("source");
  ASSERT_TRUE(b.Write(source, 0, "new").ok());
  ASSERT_TRUE(b.fs->Rename(*b.lane, kRootInode, "source", kRootInode, "target", 0).ok());
  EXPECT_EQ(a.Read(target, 0, 10), "old");
  OpenFile* now = a.Open("target", O_RDONLY);
  EXPECT_EQ(a.Read(now, 0, 10), "new");
  a.Close(target);
  a.Close(now);
  b.Close(source);
}

}  // namespace termfs::fs
