// SPDX-License-Identifier: Apache-2.0
//
// Files of which one open at the server serves many handles, at a time and one after the other.
#include "fs/client/shared_opens.h"

#include <fcntl.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "fs/client/volume_client.h"
#include "tests/unit/eventually.h"
#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {

using client::OpenFile;
using client::PageUse;
using client::SharedOpen;
using client::SharedOpens;

namespace {

class SharedOpensTest : public testing::Test {
 protected:
  SharedOpensTest() {
    OpenFile* const file = a.Create("f");
    EXPECT_TRUE(a.Write(file, 0, "contents").ok());
    a.Close(file);
    ino = a.InodeOf("f");
  }
  OpenFile* Open(int flags = O_RDONLY) {
    const auto opened = a.fs->Open(*a.lane, ino, flags);
    EXPECT_TRUE(opened.ok()) << opened.status().ToString();
    return opened.ok() ? *opened : nullptr;
  }
  // Whether an open, a read and a close went without a request, as far as the open is concerned.
  bool OpensAgain(int flags = O_RDONLY) {
    const uint64_t before = a.Metric("fs_opens_again_total");
    OpenFile* const file = Open(flags);
    const bool again = a.Metric("fs_opens_again_total") != before;
    EXPECT_TRUE(!again || a.fs->pages(file) == PageUse::kKept);
    a.Close(file);
    return again;
  }
  void OpenTwice() {
    EXPECT_FALSE(OpensAgain());
    EXPECT_TRUE(OpensAgain());
  }
  void ExpectAskedAfter(const char* what, const std::function<void()>& change) {
    // Not the second time already, if blocks that were set aside for the last change are just being freed.
    EXPECT_TRUE(Eventually([&] { return OpensAgain(); })) << what;
    change();
    EXPECT_FALSE(OpensAgain()) << what;
  }
  // Until the server has nothing open of f.
  bool IsClosed() {
    return Eventually([&] { return volume.names().StatFs().inodes == inodes - 1; });
  }

  MemoryVolume volume{uint64_t{16} << 20};
  SilentCache a_cache;
  SilentCache b_cache;
  Mount a{volume, &a_cache};
  Mount b{volume, &b_cache};
  uint64_t ino = 0;
  uint64_t inodes = 0;
};

}  // namespace

TEST_F(SharedOpensTest, ARepeatedOpenAndItsClose_CostNoRequest) {
  OpenTwice();
  const uint64_t requests = a.Metric("fs_metadata_total");
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(OpensAgain());
  }
  EXPECT_EQ(a.Metric("fs_metadata_total"), requests);
}

TEST_F(SharedOpensTest, OfManyAtATime_TheFirstAsks) {
  OpenFile* const one = Open();
  EXPECT_EQ(a.Read(one, 0, 100), "contents");
  const uint64_t requests = a.Metric("fs_metadata_total");
  OpenFile* const two = Open();
  OpenFile* const three = Open();
  EXPECT_EQ(a.fs->pages(two), PageUse::kKept);
  a.Close(one);
  EXPECT_EQ(a.Read(two, 0, 100), "contents");
  EXPECT_TRUE(OpensAgain());
  a.Close(two);
  a.Close(three);
  EXPECT_TRUE(OpensAgain());
  EXPECT_EQ(a.Metric("fs_metadata_total"), requests);
}

TEST_F(SharedOpensTest, WhatTheFirstOpenMayDropYet_IsNotKeptByTheNext) {
  OpenFile* const one = Open();
  ASSERT_EQ(a.fs->pages(one), PageUse::kFresh);
  OpenFile* const two = Open();
  EXPECT_EQ(a.fs->pages(two), PageUse::kFresh) << "the kernel may not have got to the first";
  OpenFile* const noatime = Open(O_RDONLY | O_NOATIME);
  EXPECT_EQ(a.fs->pages(noatime), PageUse::kFresh) << "which asked the server";
  EXPECT_EQ(a.Read(noatime, 0, 100), "contents");
  OpenFile* const three = Open(O_RDONLY | O_NOATIME);
  EXPECT_EQ(a.fs->pages(three), PageUse::kKept) << "it has dropped all since";
  for (OpenFile* const file : {one, two, noatime, three}) {
    a.Close(file);
  }
}

TEST_F(SharedOpensTest, LocksEndWithTheirHandle_NotWithTheLastOfTheFile) {
  for (const bool flock : {false, true}) {
    OpenFile* const locker = Open();
    OpenFile* const other = Open();
    const client::FileLock lock{.flock = flock, .owner = 7, .type = LockType::kRead};
    ASSERT_TRUE(a.fs->Lock(*a.lane, locker, lock, nullptr).ok());
    OpenFile* const writer = b.Open("f", O_RDWR);
    client::FileLock exclusive = lock;
    exclusive.type = LockType::kWrite;
    EXPECT_EQ(b.fs->Lock(*b.lane, writer, exclusive, nullptr).code(), EBUSY);
    a.Close(locker);
    EXPECT_TRUE(Eventually([&] { return b.fs->Lock(*b.lane, writer, exclusive, nullptr).ok(); })) << flock;
    b.Close(writer);
    EXPECT_EQ(a.Read(other, 0, 100), "contents");
    a.Close(other);
  }
}

TEST_F(SharedOpensTest, AnotherKindOfOpen_IsAsked) {
  OpenTwice();
  EXPECT_FALSE(OpensAgain(O_RDONLY | O_NOATIME));
  OpenTwice();
  EXPECT_FALSE(OpensAgain(O_RDWR));
  EXPECT_FALSE(OpensAgain(O_RDWR)) << "who writes";
}

TEST_F(SharedOpensTest, WhatThisMountChanges_IsAsked) {
  client::SetAttributes mode;
  mode.mode = 0600;
  client::SetAttributes atime;
  atime.atime = 5;
  ExpectAskedAfter("size", [&] { EXPECT_TRUE(a.Resize(ino, 3).ok()); });
  for (const client::SetAttributes& what : {mode, atime}) {
    ExpectAskedAfter("mode, access time", [&] { EXPECT_TRUE(a.fs->Set(*a.lane, ino, what, nullptr).ok()); });
  }
  ExpectAskedAfter("attribute", [&] {
    EXPECT_TRUE(a.fs->SetXattr(*a.lane, ino, "user.x", std::as_bytes(std::span("x", 1)), 0, false).ok());
  });
  ExpectAskedAfter("link", [&] { EXPECT_TRUE(a.fs->Link(*a.lane, ino, kRootInode, "g").ok()); });
  ExpectAskedAfter("unlink of one of two", [&] { EXPECT_TRUE(a.Remove("g").ok()); });
  ExpectAskedAfter("rename", [&] { EXPECT_TRUE(a.fs->Rename(*a.lane, kRootInode, "f", kRootInode, "h", 0).ok()); });
  OpenFile* const reader = Open();
  EXPECT_TRUE(OpensAgain());
  EXPECT_TRUE(a.Resize(ino, 4).ok());
  EXPECT_FALSE(OpensAgain()) << "while an earlier handle is open";
  EXPECT_TRUE(OpensAgain());
  a.Close(reader);
  OpenFile* const writer = Open(O_WRONLY);
  ExpectAskedAfter("write", [&] { EXPECT_TRUE(a.Write(writer, 0, "C").ok()); });
  ExpectAskedAfter("allocation", [&] { EXPECT_TRUE(a.fs->Allocate(*a.lane, writer, 0, 0, 5000).ok()); });
  a.Close(writer);
}

TEST_F(SharedOpensTest, WhatIsChangedWhileItIsOpen_IsAsked) {
  client::SetAttributes mode;
  mode.mode = 0600;
  const auto opens_again_after = [&](const std::function<void()>& change) {
    OpenFile* const file = Open();
    change();
    a.Close(file);
    return OpensAgain();
  };
  EXPECT_TRUE(opens_again_after([] {}));
  EXPECT_FALSE(opens_again_after([&] { EXPECT_TRUE(a.fs->Set(*a.lane, ino, mode, nullptr).ok()); }));
  EXPECT_FALSE(
      opens_again_after([&] { EXPECT_TRUE(a.fs->Rename(*a.lane, kRootInode, "f", kRootInode, "h", 0).ok()); }));
  EXPECT_FALSE(opens_again_after([&] { a.Close(Open(O_WRONLY | O_TRUNC)); }));
  EXPECT_FALSE(opens_again_after([&] {
    a.Stat(ino);
    EXPECT_TRUE(b.fs->Set(*b.lane, ino, mode, nullptr).ok());
  }));
  inodes = volume.names().StatFs().inodes;
  OpenFile* const file = Open();
  EXPECT_TRUE(a.Remove("h").ok());
  a.Close(file);
  EXPECT_TRUE(IsClosed()) << "at its close";
}

TEST_F(SharedOpensTest, WhatIsRemoved_GivesItsQuotaBack) {
  ASSERT_TRUE(volume.names().SetQuota(kRootInode, uint64_t{1} << 20, std::nullopt).ok());
  OpenFile* const writer = Open(O_WRONLY);
  ASSERT_TRUE(a.Write(writer, 0, std::string(900 << 10, 'x')).ok());
  a.Close(writer);
  for (int round = 0; round < 40; ++round) {  // at any moment of the reclaimer's
    Mount* const remover = round % 2 == 0 ? &a : &b;
    EXPECT_FALSE(OpensAgain());
    EXPECT_TRUE(remover->Remove("f").ok());
    OpenFile* const file = a.Create("f");
    ASSERT_TRUE(a.Write(file, 0, std::string(900 << 10, 'y')).ok())
        << (remover == &a ? "own, " : "another's, ") << round;
    a.Close(file);
    ino = a.InodeOf("f");
  }
}

TEST_F(SharedOpensTest, WhatAnotherMountChanges_IsAsked) {
  OpenFile* const writer = b.Open("f", O_WRONLY);
  ExpectAskedAfter("write", [&] { EXPECT_TRUE(b.Write(writer, 0, "C").ok()); });
  b.Close(writer);
  ExpectAskedAfter("mode", [&] {
    a.Stat(ino);
    client::SetAttributes what;
    what.mode = 0640;
    EXPECT_TRUE(b.fs->Set(*b.lane, ino, what, nullptr).ok());
  });
}

TEST_F(SharedOpensTest, WhatIsRemoved_IsFreed) {
  inodes = volume.names().StatFs().inodes;
  OpenTwice();
  EXPECT_TRUE(a.Remove("f").ok());
  EXPECT_TRUE(IsClosed()) << "by this mount";
}

TEST_F(SharedOpensTest, WhatAnotherRemoves_IsFreed) {
  inodes = volume.names().StatFs().inodes;
  OpenTwice();
  a.Stat(ino);
  EXPECT_TRUE(b.Remove("f").ok());
  EXPECT_TRUE(IsClosed()) << "by another mount";
}

TEST_F(SharedOpensTest, WhatAnotherRemoves_IsFreed_AlsoWhenNoAttributesAreGrantedAnyMore) {
  MemoryVolume shortly(uint64_t{16} << 20,
                       {.lease = std::chrono::milliseconds(100), .drift = std::chrono::milliseconds(50)});
  Mount reader(shortly, &a_cache);
  Mount remover(shortly, &b_cache);
  remover.Close(remover.Create("f"));
  const uint64_t before = shortly.names().StatFs().inodes;
  reader.Close(reader.Open("f", O_RDONLY));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_TRUE(remover.Remove("f").ok());
  EXPECT_TRUE(Eventually([&] { return shortly.names().StatFs().inodes == before - 1; }, std::chrono::seconds(5)))
      << "long before it would be closed anyway";
}

// Its attributes were granted to nobody but by the open.
TEST_F(SharedOpensTest, WhatAnotherChangesOfItsAttributes_IsAsked) {
  for (int i = 0; i < 2; ++i) {
    OpensAgain();
    client::SetAttributes atime;
    atime.atime = 5 + i;
    EXPECT_TRUE(b.fs->Set(*b.lane, ino, atime, nullptr).ok());
    EXPECT_FALSE(OpensAgain());
  }
}

TEST_F(SharedOpensTest, WhatHasNoNameAnyMore_IsNotKept) {
  inodes = volume.names().StatFs().inodes;
  OpenFile* const file = Open();
  EXPECT_TRUE(a.Remove("f").ok());
  OpenFile* const by_descriptor = Open();  // as by a path in /proc/self/fd
  EXPECT_EQ(a.Read(by_descriptor, 0, 100), "contents");
  EXPECT_FALSE(OpensAgain());
  a.Close(file);
  a.Close(by_descriptor);
  EXPECT_TRUE(IsClosed());
}

TEST_F(SharedOpensTest, WhatIsReplaced_IsFreed) {
  inodes = volume.names().StatFs().inodes + 1;
  b.Close(b.Create("other"));
  OpenTwice();
  EXPECT_TRUE(a.fs->Rename(*a.lane, kRootInode, "other", kRootInode, "f", 0).ok());
  EXPECT_TRUE(IsClosed());
}

TEST_F(SharedOpensTest, TheSessionIsLost_IsAsked) {
  OpenTwice();
  volume.KillAndRestart();
  a.FreeBytes();
  EXPECT_FALSE(OpensAgain());
  EXPECT_TRUE(OpensAgain());
}

TEST_F(SharedOpensTest, AMountThatCachesNothing_Asks) {
  Mount plain(volume);
  for (int i = 0; i < 3; ++i) {
    plain.Close(plain.Open("f", O_RDONLY));
  }
  EXPECT_EQ(plain.Metric("fs_opens_again_total"), 0U);
}

TEST(SharedOpens, SoManyIdleAtMost_OneMoreIsItsUsersToClose) {
  SharedOpens opens([](const SharedOpen& one) { ADD_FAILURE() << one.ino; });
  const auto cache = std::make_shared<client::InodeCache>();
  const SharedOpen::Since now{.when = std::chrono::steady_clock::now()};
  const auto share = [&](uint64_t ino, const SharedOpen::Since& since) {
    const auto open = std::make_shared<SharedOpen>(ino, O_RDONLY, cache, since);
    opens.Share(open);
    return open;
  };
  const SharedOpens::Open used = share(9999, now);
  for (uint64_t ino = 1; ino <= SharedOpens::kMostIdle; ++ino) {
    EXPECT_TRUE(opens.Leave(share(ino, now), true));
  }
  EXPECT_FALSE(opens.Leave(used, true));
  EXPECT_EQ(opens.Join(9999, O_RDONLY), nullptr);
  EXPECT_NE(opens.Take(1), nullptr);
  EXPECT_FALSE(opens.Leave(share(7777, {}), true)) << "opened long ago";
  EXPECT_TRUE(opens.Leave(share(8888, now), true)) << "there is room again";
  EXPECT_EQ(opens.Join(2, O_RDONLY | O_NOATIME), nullptr);
  const SharedOpens::Open two = opens.Join(2, O_RDONLY);
  ASSERT_NE(two, nullptr);
  EXPECT_EQ(opens.Join(2, O_RDONLY), two);
  EXPECT_EQ(opens.Take(2), nullptr) << "it is in use";
  EXPECT_EQ(opens.Join(2, O_RDONLY), nullptr) << "nobody joins it any more";
  EXPECT_TRUE(opens.Leave(two, true));
  EXPECT_FALSE(opens.Leave(two, true)) << "the last one closes it";
  EXPECT_NE(opens.Take(3), nullptr);
}

TEST(SharedOpens, WhatIsReplacedWhileItIsIdle_IsClosed) {
  std::atomic<const SharedOpen*> closed{nullptr};
  SharedOpens opens([&](const SharedOpen& one) { closed = &one; });
  const auto cache = std::make_shared<client::InodeCache>();
  const SharedOpen::Since now{.when = std::chrono::steady_clock::now()};
  const auto first = std::make_shared<SharedOpen>(1, O_RDONLY, cache, now);
  const auto second = std::make_shared<SharedOpen>(1, O_RDONLY, cache, now);
  opens.Share(first);
  EXPECT_TRUE(opens.Leave(first, true));
  opens.Share(second);
  EXPECT_TRUE(Eventually([&] { return closed == first.get(); }));
  EXPECT_TRUE(opens.Leave(second, true));
  EXPECT_EQ(opens.Join(1, O_RDONLY), second);
}

}  // namespace termfs::fs
