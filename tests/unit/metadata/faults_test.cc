// SPDX-License-Identifier: Apache-2.0
//
// Each operation with a commit that fails: it reports that, changes nothing (sums in memory included), and works when
// it is tried again. And with conflicts: nobody sees them.
#include <functional>
#include <map>

#include "tests/fakes/faulty_store.h"
#include "tests/unit/metadata/test_volume.h"

namespace termfs::metadata {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FaultsTest : public ::testing::Test {
 protected:
  FaultsTest() : below_(NewMemoryStore()), store_(*below_) {
    EXPECT_TRUE(Namespace::Format(store_, SmallVolume(200)).ok());
    ns_ = std::move(Namespace::Open(store_)).value();
    dir_ = ns_->Create(kRootInode, "d", {S_IFDIR | 0755, 0, ""}, {}, now_)->ino;
    file_ = ns_->Create(kRootInode, "f", {}, {}, now_)->ino;
    EXPECT_TRUE(ns_->AllocateExtents(file_, 0, 20, std::nullopt, now_).ok());
    EXPECT_TRUE(ns_->PunchExtents(file_, 15, 5, now_).ok());
    EXPECT_TRUE(ns_->Truncate(file_, 15 * kPageSize, now_).ok());
    unnamed_ = ns_->CreateUnnamed(kRootInode, {}, {}, now_, true)->ino;
    orphan_ = ns_->Create(kRootInode, "o", {}, {}, now_)->ino;
    EXPECT_TRUE(ns_->AllocateExtents(orphan_, 0, 5, std::nullopt, now_).ok());
    EXPECT_TRUE(ns_->Unlink(kRootInode, "o", kOpen, now_).ok());
  }

  std::vector<KeyValue> Everything() { return *below_->Snapshot()->Scan(std::string(1, '\0'), "\xff", 10000); }

  const std::map<std::string, std::function<Status()>> operations_ = {
      {"Create", [this] { return ns_->Create(dir_, "new", {}, {}, now_).status(); }},
      {"Link", [this] { return ns_->Link(file_, dir_, "link", now_).status(); }},
      {"CreateUnnamed", [this] { return ns_->CreateUnnamed(dir_, {}, {}, now_, true).status(); }},
      {"LinkUnnamed", [this] { return ns_->LinkUnnamed(unnamed_, dir_, "unnamed", now_).status(); }},
      {"Rename",
       [this] { return ns_->Rename(kRootInode, "f", dir_, "g", RenameMode::kReplace, kNotOpen, now_).status(); }},
      {"Allocate", [this] { return ns_->AllocateExtents(file_, 100, 30, std::nullopt, now_).status(); }},
      {"Truncate", [this] { return ns_->Truncate(file_, 3 * kPageSize, now_).status(); }},
      {"SetSize", [this] { return ns_->SetSizeAndTimes(file_, 1 << 20, SizeRule::kIfLarger, now_, now_).status(); }},
      {"SetAttr",
       [this] {
         return ns_->SetAttr(file_, {0600, {}, {}, {}, {}}, now_).status();
       }},
      {"SetXattr", [this] { return ns_->SetXattr(file_, "user.a", "v", XattrMode::kEither, now_); }},
      {"CommitFree", [this] { return ns_->CommitFree(*ns_->ListPendingFree({}, 10)); }},
      {"ReleaseOrphan", [this] { return ns_->ReleaseOrphan(orphan_); }},
      {"Unlink", [this] { return ns_->Unlink(kRootInode, "f", kNotOpen, now_).status(); }},
      {"Rmdir", [this] { return ns_->Rmdir(kRootInode, "d", kNotOpen, now_).status(); }},
      {"Grow", [this] { return ns_->Grow(300); }},
  };

  const std::unique_ptr<KeyValueStore> below_;
  FaultyStore store_;
  std::unique_ptr<Namespace> ns_;
  Nanoseconds now_{1};
  InodeNumber dir_ = 0;
  InodeNumber file_ = 0;
  InodeNumber orphan_ = 0;
  InodeNumber unnamed_ = 0;
};

TEST_F(FaultsTest, FailedCommit_IsReportedAndChangesNothing) {
  for (const auto& [name, operation] : operations_) {
    const auto before = Everything();
    const SpaceUse use = ns_->StatFs();
    store_.FailCommits(EIO, 1000);
    const Status status = operation();
    store_.Heal();
    EXPECT_EQ(status.code(), EIO) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("injected")) << name;
    const auto after = Everything();
    ASSERT_EQ(after.size(), before.size()) << name;
    for (size_t i = 0; i < after.size(); ++i) {
      EXPECT_TRUE(after[i].key == before[i].key && after[i].value == before[i].value) << name;
    }
    EXPECT_TRUE(ns_->StatFs() == use) << name;
  }
}

TEST_F(FaultsTest, Conflicts_AreRetriedAndCountedOnce) {
  now_ = Nanoseconds(2);
  for (const char* name : {"Create", "Link", "Allocate", "SetSize", "SetXattr", "Truncate", "CommitFree",
                           "ReleaseOrphan", "SetAttr", "Rename", "Grow"}) {
    store_.FailCommits(EAGAIN, 5);
    const Status status = operations_.at(name)();
    EXPECT_TRUE(status.ok()) << name << ": " << status.ToString();
    EXPECT_THAT(Problems(store_), IsEmpty()) << name;
    // The sums in memory are those that a restart would read.
    const SpaceUse use = ns_->StatFs();
    EXPECT_TRUE((*Namespace::Open(store_))->StatFs() == use) << name;
  }
}

TEST_F(FaultsTest, CrossingMoves_NeverMakeACircle) {
  const auto make = [this](InodeNumber parent, const char* name) {
    return ns_->Create(parent, name, {S_IFDIR | 0755, 0, ""}, {}, now_)->ino;
  };
  // No inode is named by both moves: only the claim that all who move directories share is.
  const InodeNumber x = make(kRootInode, "x");
  const InodeNumber y = make(kRootInode, "y");
  const InodeNumber below_a = make(make(x, "a"), "p");
  const InodeNumber below_b = make(make(y, "b"), "q");
  Status second;
  store_.BeforeNextCommit(
      [&] { second = ns_->Rename(y, "b", below_a, "b", RenameMode::kReplace, kNotOpen, now_).status(); });
  EXPECT_EQ(ns_->Rename(x, "a", below_b, "a", RenameMode::kReplace, kNotOpen, now_).status().code(), EINVAL);
  EXPECT_TRUE(second.ok()) << second.ToString();
  EXPECT_THAT(Problems(store_), IsEmpty());
}

TEST_F(FaultsTest, CreateDuringRmdir_KeepsTheDirectory) {
  Status created;
  store_.BeforeNextCommit([&] { created = ns_->Create(dir_, "new", {}, {}, now_).status(); });
  EXPECT_EQ(ns_->Rmdir(kRootInode, "d", kNotOpen, now_).status().code(), ENOTEMPTY);
  EXPECT_TRUE(created.ok()) << created.ToString();
  EXPECT_THAT(Problems(store_), IsEmpty());
}

}  // namespace
}  // namespace termfs::metadata
