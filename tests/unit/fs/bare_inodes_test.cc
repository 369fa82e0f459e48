// SPDX-License-Identifier: Apache-2.0
//
// Who is asked for extended attributes of what has none: the mount itself, as long as that is what the server would
// say.
#include "fs/client/bare_inodes.h"

#include <cerrno>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "fs/client/volume_client.h"
#include "metadata/acl.h"
#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {

using client::BareInodes;
using std::chrono::seconds;

namespace {

constexpr uint64_t kBare = 7;

// What a reply grants.
class Granted {
 public:
  explicit Granted(seconds time = seconds(60)) {
    grants.BeginRequest();
    grants.Granted(0, static_cast<uint32_t>(std::chrono::milliseconds(time).count()));
  }
  client::KeptByKernel kept;
  client::LaneGrants grants{kept};
};

Attributes Bare(uint64_t ino) { return {.ino = ino, .no_xattrs = true}; }

Status Label(Mount& mount, uint64_t ino, std::string_view value) {
  return mount.fs->SetXattr(*mount.lane, ino, "user.label", std::as_bytes(std::span(value)), 0, false);
}

// Nothing: there is none.
std::optional<std::string> LabelOf(Mount& mount, uint64_t ino) {
  const auto value = mount.fs->GetXattr(*mount.lane, ino, "user.label");
  const auto names = mount.fs->ListXattr(*mount.lane, ino);
  EXPECT_TRUE(names.ok()) << names.status().ToString();
  if (!value.ok()) {
    EXPECT_EQ(value.status().code(), ENODATA) << value.status().ToString();
    EXPECT_TRUE(names.ok() && names->empty());
    return std::nullopt;
  }
  EXPECT_TRUE(names.ok() && *names == std::vector<std::string>{"user.label"});
  return std::string(reinterpret_cast<const char*>(value->data()), value->size());
}

class BareInodesTest : public testing::Test {
 protected:
  BareInodesTest() {
    other.Close(other.Create("f"));
    ino = one.InodeOf("f");
  }
  // Whether the first mount asks the server; it must find no label.
  bool Asks(Mount& mount) {
    const uint64_t calls = mount.Metric("fs_metadata_total");
    EXPECT_EQ(LabelOf(mount, ino), std::nullopt);
    return mount.Metric("fs_metadata_total") != calls;
  }

  MemoryVolume volume{uint64_t{16} << 20};
  SilentCache one_cache;
  SilentCache other_cache;
  Mount one{volume, &one_cache};
  Mount other{volume, &other_cache};
  uint64_t ino = 0;
};

}  // namespace

TEST(BareInodes, Contains_WhatWasSeenAndNothingHasHappenedToSince) {
  Granted granted;
  BareInodes bare;
  EXPECT_FALSE(bare.Contains(kBare));
  bare.Seen(Bare(kBare), granted.grants);
  bare.Seen(Bare(kBare + 1), granted.grants);
  bare.Seen(Bare(kBare + 2), granted.grants);
  EXPECT_TRUE(bare.Contains(kBare));
  bare.Forget(kBare);
  EXPECT_FALSE(bare.Contains(kBare));
  EXPECT_TRUE(bare.Contains(kBare + 1));
  bare.Seen({.ino = kBare + 1}, granted.grants);
  EXPECT_FALSE(bare.Contains(kBare + 1)) << "it has some now";
  EXPECT_TRUE(bare.Contains(kBare + 2));
  bare.ForgetAll();
  EXPECT_FALSE(bare.Contains(kBare + 2));
}

TEST(BareInodes, WhatIsNotGranted_IsNotKnown) {
  Granted nothing(seconds(0));
  Granted granted;
  BareInodes bare;
  bare.Seen(Bare(kBare), nothing.grants);
  EXPECT_FALSE(bare.Contains(kBare));
  granted.kept.NoteRecall();
  bare.Seen(Bare(kBare), granted.grants);
  EXPECT_FALSE(bare.Contains(kBare)) << "something was recalled since it was asked for";
}

TEST(BareInodes, WhileItChanges_NothingIsKnown) {
  Granted granted;
  BareInodes bare;
  bare.Seen(Bare(kBare), granted.grants);
  bare.BeginChange(kBare);
  bare.BeginChange(kBare);
  EXPECT_FALSE(bare.Contains(kBare));
  bare.EndChange(kBare);
  bare.Seen(Bare(kBare), granted.grants);
  EXPECT_FALSE(bare.Contains(kBare)) << "one of two is under way";
  bare.EndChange(kBare);
  bare.Seen(Bare(kBare), granted.grants);
  EXPECT_TRUE(bare.Contains(kBare));
}

TEST(BareInodes, Many_TheLastOnesAreKnown) {
  constexpr uint64_t kMany = 200'000;
  Granted granted(seconds(600));
  BareInodes bare;
  for (uint64_t ino = 1; ino <= kMany; ++ino) {
    bare.Seen(Bare(ino), granted.grants);
  }
  EXPECT_FALSE(bare.Contains(1));
  for (uint64_t ino = kMany - 30'000; ino <= kMany; ++ino) {
    ASSERT_TRUE(bare.Contains(ino)) << ino;
  }
  bare.Forget(kMany - 30'000);
  EXPECT_FALSE(bare.Contains(kMany - 30'000));
}

TEST_F(BareInodesTest, WhatWasLookedAt_NeedsNotBeAskedFor) {
  EXPECT_FALSE(Asks(one));
  const auto quota = one.fs->GetXattr(*one.lane, ino, kQuotaXattr);
  EXPECT_EQ(quota.status().code(), ENODATA);
  one.Stat(ino);
  ASSERT_TRUE(volume.names().SetQuota(kRootInode, uint64_t{1} << 20, std::nullopt).ok());
  EXPECT_TRUE(one.fs->GetXattr(*one.lane, ino, kQuotaXattr).ok()) << "which is none that an inode has";
}

TEST_F(BareInodesTest, WhatWasListedOrMade_NeedsNotBeAskedFor) {
  Mount lister(volume, &one_cache);
  ASSERT_TRUE(lister.fs->ReadDirectory(*lister.lane, kRootInode, 0, 4096, true).ok());
  EXPECT_FALSE(Asks(lister));
  one.Close(one.Create("g"));
  const uint64_t calls = one.Metric("fs_metadata_total");
  ino = volume.names().Lookup(kRootInode, "g")->ino;
  EXPECT_EQ(LabelOf(one, ino), std::nullopt);
  EXPECT_EQ(one.Metric("fs_metadata_total"), calls);
}

TEST_F(BareInodesTest, WhatAnyMountSets_IsSeen) {
  for (Mount* const setter : {&one, &other}) {
    one.Stat(ino);
    EXPECT_FALSE(Asks(one));
    ASSERT_TRUE(Label(*setter, ino, "red").ok());
    EXPECT_EQ(LabelOf(one, ino), "red");
    one.Stat(ino);
    EXPECT_EQ(LabelOf(one, ino), "red") << "and looked at since";
    ASSERT_TRUE(setter->fs->RemoveXattr(*setter->lane, ino, "user.label").ok());
    EXPECT_EQ(LabelOf(one, ino), std::nullopt);
  }
}

// What takes its pages back takes its attributes back with them.
TEST_F(BareInodesTest, WhatAnotherWritesAndThenSets_IsSeen) {
  one.Close(one.Open("f", O_RDONLY));
  one.Stat(ino);
  EXPECT_FALSE(Asks(one));
  client::OpenFile* const writer = other.Open("f", O_WRONLY);
  ASSERT_TRUE(other.Write(writer, 0, "contents").ok());
  other.Close(writer);
  ASSERT_TRUE(Label(other, ino, "red").ok());
  EXPECT_EQ(LabelOf(one, ino), "red");
}

TEST_F(BareInodesTest, AListing_TellsNothingOfItsDirectory) {
  Mount lister(volume, &one_cache);
  ASSERT_TRUE(lister.fs->ReadDirectory(*lister.lane, kRootInode, 0, 4096, true).ok());
  ASSERT_TRUE(Label(other, kRootInode, "red").ok());
  EXPECT_EQ(LabelOf(lister, kRootInode), "red");
}

TEST_F(BareInodesTest, WhatIsMadeWithAList_IsAskedFor) {
  metadata::Acl acl;
  const std::string list = [&] {
    const auto decoded =
        metadata::Acl::Decode(std::string("\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x07\0\x05\0\0\0\x04\0\x05\0\xff"
                                          "\xff\xff\xff\x10\0\x07\0\xff\xff\xff\xff"
                                          "\x20\0\x05\0\xff\xff\xff\xff",
                                          44));
    EXPECT_TRUE(decoded.ok());
    return decoded->Encode();
  }();
  ASSERT_TRUE(
      one.fs->SetXattr(*one.lane, kRootInode, metadata::kDefaultAcl, std::as_bytes(std::span(list)), 0, false).ok());
  one.Close(one.Create("g"));
  const uint64_t made = volume.names().Lookup(kRootInode, "g")->ino;
  EXPECT_TRUE(one.fs->GetXattr(*one.lane, made, metadata::kAccessAcl).ok());
}

TEST_F(BareInodesTest, TheSessionIsLost_IsAskedFor) {
  EXPECT_FALSE(Asks(one));
  volume.KillAndRestart();
  one.FreeBytes();
  EXPECT_TRUE(Asks(one));
}

TEST_F(BareInodesTest, TheGrantHasEnded_IsAskedFor) {
  MemoryVolume shortly(uint64_t{16} << 20,
                       {.lease = std::chrono::milliseconds(100), .drift = std::chrono::milliseconds(50)});
  Mount mount(shortly, &one_cache);
  mount.Close(mount.Create("f"));
  ino = mount.InodeOf("f");
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_TRUE(Asks(mount));
}

// One sets and removes it, and sees each time what it has done; others of its mount look at the inode all the time.
TEST_F(BareInodesTest, WhatIsSet_IsSeenBesideLooks) {
  for (Mount* const setter : {&one, &other}) {
    std::atomic<bool> stop{false};
    std::thread looker([&] {
      const auto lane = one.fs->OpenLane(size_t{1} << 17);
      ASSERT_TRUE(lane.ok());
      while (!stop.load()) {
        EXPECT_TRUE(one.fs->GetAttributes(**lane, ino).ok());
      }
    });
    for (int i = 0; i < 300; ++i) {
      ASSERT_TRUE(Label(*setter, ino, std::to_string(i)).ok());
      ASSERT_EQ(LabelOf(one, ino), std::to_string(i));
      ASSERT_TRUE(setter->fs->RemoveXattr(*setter->lane, ino, "user.label").ok());
      ASSERT_EQ(LabelOf(one, ino), std::nullopt);
    }
    stop.store(true);
    looker.join();
  }
}

}  // namespace termfs::fs
