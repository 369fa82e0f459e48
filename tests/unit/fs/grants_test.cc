// SPDX-License-Identifier: Apache-2.0
//
// What a session is granted, and what each operation of another one calls back.
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/stat.h>

#include <array>
#include <map>
#include <set>
#include <thread>

#include "fs/client/kept_by_kernel.h"
#include "fs/proto/opcodes.h"
#include "tests/unit/eventually.h"
#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {

using client::OpenFile;
using std::chrono::milliseconds;

namespace {

// What a kernel is told.
class Told final : public client::KernelCache {
 public:
  bool InvalidateInode(uint64_t, uint64_t, uint64_t) override { return true; }
  void InvalidateAttributes(uint64_t ino, std::chrono::steady_clock::time_point) override {
    MutexLock lock(mutex_);
    inodes_.insert(ino);
  }
  [[nodiscard]] bool InvalidateEntry(uint64_t parent, std::string_view name) override {
    MutexLock lock(mutex_);
    entries_.emplace(parent, name);
    return true;
  }
  void ServerLost() override {}
  std::set<uint64_t> inodes() {
    MutexLock lock(mutex_);
    return inodes_;
  }
  std::set<std::pair<uint64_t, std::string>> entries() {
    MutexLock lock(mutex_);
    return entries_;
  }

 private:
  Mutex mutex_;
  std::set<uint64_t> inodes_ GUARDED_BY(mutex_);
  std::set<std::pair<uint64_t, std::string>> entries_ GUARDED_BY(mutex_);
};

// Two directories with a file each, and a directory in the first; names as paths.
constexpr const char* kInodes[] = {"d1", "d2", "d1/f", "d2/h", "d1/sub"};
constexpr const char* kEntries[] = {"d1",     "d2",     "d1/f",  "d2/h",
                                    "d1/sub", "d1/new", "d2/new"};  // the last are not there

struct Tree {
  explicit Tree(TestVolume& volume, client::KernelCache* cache) : mount(volume, cache) {
    d1 = MakeDirectory(kRootInode, "d1");
    d2 = MakeDirectory(kRootInode, "d2");
    sub = MakeDirectory(d1, "sub");
    file = mount.Create("f", O_RDWR, d1);
    f = mount.InodeOf("f", d1);
    EXPECT_TRUE(mount.Write(file, 0, "12345678").ok());
    mount.Close(mount.Create("h", O_RDWR, d2));
    h = mount.InodeOf("h", d2);
  }
  ~Tree() { mount.Close(file); }
  uint64_t MakeDirectory(uint64_t parent, const char* name) {
    const auto made = mount.fs->MakeDirectory(*mount.lane, {0, 0}, parent, name, 0755);
    EXPECT_TRUE(made.ok());
    return made.ok() ? made->ino : 0;
  }
  std::pair<uint64_t, std::string> EntryOf(std::string_view path) const {
    const size_t slash = path.find('/');
    if (slash == std::string_view::npos) {
      return {kRootInode, std::string(path)};
    }
    return {path.substr(0, slash) == "d1" ? d1 : d2, std::string(path.substr(slash + 1))};
  }
  Status Set(const client::SetAttributes& what) { return mount.fs->Set(*mount.lane, f, what, nullptr).status(); }
  Status Rename(const char* from, const char* to, uint32_t flags = 0) {
    return mount.fs->Rename(*mount.lane, EntryOf(from).first, EntryOf(from).second, EntryOf(to).first,
                            EntryOf(to).second, flags);
  }
  client::FileSystem& fs() { return *mount.fs; }
  client::Lane& lane() { return *mount.lane; }

  Mount mount;
  uint64_t d1 = 0, d2 = 0, sub = 0, f = 0, h = 0;
  OpenFile* file = nullptr;
};

struct Row {
  const char* what;
  Status (*operation)(Tree&);
  std::set<std::string> inodes;
  std::set<std::string> entries;
};

template <typename Change>
Status SetWith(Tree& t, Change change) {
  client::SetAttributes what;
  change(what);
  return t.Set(what);
}

const std::vector<Row>& Rows() {
  static const std::vector<Row> rows = {
      {"create",
       [](Tree& t) {
         t.mount.Close(t.mount.Create("new", O_RDWR | O_EXCL, t.d1));
         return Status::Ok();
       },
       {"d1"},
       {"d1/new"}},
      {"mkdir",
       [](Tree& t) {
         return t.fs().MakeDirectory(t.lane(), {0, 0}, t.d1, "new", 0755).status();
       },
       {"d1"},
       {"d1/new"}},
      {"mknod",
       [](Tree& t) {
         return t.fs().MakeNode(t.lane(), {0, 0}, t.d2, "new", S_IFIFO | 0644, 0).status();
       },
       {"d2"},
       {"d2/new"}},
      {"symlink",
       [](Tree& t) {
         return t.fs().Symlink(t.lane(), {0, 0}, t.d1, "new", "f").status();
       },
       {"d1"},
       {"d1/new"}},
      {"link", [](Tree& t) { return t.fs().Link(t.lane(), t.f, t.d2, "new").status(); }, {"d1/f", "d2"}, {"d2/new"}},
      {"unlink", [](Tree& t) { return t.fs().Unlink(t.lane(), t.d1, "f"); }, {"d1/f", "d1"}, {"d1/f"}},
      {"rmdir", [](Tree& t) { return t.fs().RemoveDirectory(t.lane(), t.d1, "sub"); }, {"d1/sub", "d1"}, {"d1/sub"}},
      {"rename", [](Tree& t) { return t.Rename("d1/f", "d1/new"); }, {"d1/f", "d1"}, {"d1/f", "d1/new"}},
      {"rename elsewhere",
       [](Tree& t) { return t.Rename("d1/f", "d2/new"); },
       {"d1/f", "d1", "d2"},
       {"d1/f", "d2/new"}},
      {"rename over", [](Tree& t) { return t.Rename("d1/f", "d2/h"); }, {"d1/f", "d2/h", "d1", "d2"}, {"d1/f", "d2/h"}},
      {"rename a directory",
       [](Tree& t) { return t.Rename("d1/sub", "d2/new"); },
       {"d1/sub", "d1", "d2"},
       {"d1/sub", "d2/new"}},
      {"rename that leaves a whiteout",
       [](Tree& t) {
         return t.fs().RenameLeavingWhiteout(t.lane(), {0, 0}, t.d1, "f", t.d2, "h", 0);
       },
       {"d1/f", "d2/h", "d1", "d2"},
       {"d1/f", "d2/h"}},
      {"exchange",
       [](Tree& t) { return t.Rename("d1/f", "d2/h", RENAME_EXCHANGE); },
       {"d1/f", "d2/h", "d1", "d2"},
       {"d1/f", "d2/h"}},
      {"chmod", [](Tree& t) { return SetWith(t, [](auto& what) { what.mode = 0600; }); }, {"d1/f"}, {}},
      {"chown", [](Tree& t) { return SetWith(t, [](auto& what) { what.uid = 7; }); }, {"d1/f"}, {}},
      {"utimes", [](Tree& t) { return SetWith(t, [](auto& what) { what.mtime_now = true; }); }, {"d1/f"}, {}},
      {"truncate", [](Tree& t) { return SetWith(t, [](auto& what) { what.size = 3; }); }, {"d1/f"}, {}},
      {"open to truncate",
       [](Tree& t) {
         const auto opened = t.fs().Open(t.lane(), t.f, O_WRONLY | O_TRUNC);
         t.mount.Close(*opened);
         return opened.status();
       },
       {"d1/f"},
       {}},
      {"overwrite", [](Tree& t) { return t.mount.Write(t.file, 2, "xx"); }, {"d1/f"}, {}},
      {"grow", [](Tree& t) { return t.mount.Write(t.file, 8, "xx"); }, {"d1/f"}, {}},
      {"fallocate", [](Tree& t) { return t.fs().Allocate(t.lane(), t.file, 0, 0, 100000); }, {"d1/f"}, {}},
      {"punch",
       [](Tree& t) { return t.fs().Allocate(t.lane(), t.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096); },
       {"d1/f"},
       {}},
      {"setxattr", [](Tree& t) { return t.fs().SetXattr(t.lane(), t.f, "user.a", {}, 0, false); }, {"d1/f"}, {}},
      {"removexattr",
       [](Tree& t) {
         RETURN_IF_ERROR(t.fs().SetXattr(t.lane(), t.f, "user.a", {}, 0, false));
         return t.fs().RemoveXattr(t.lane(), t.f, "user.a");
       },
       {"d1/f"},
       {}},
      {"the first look",
       [](Tree& t) {
         for (int look = 0; look < 2; ++look) {
           ASSIGN_OR_RETURN(OpenFile* const opened, t.fs().Open(t.lane(), t.f, O_RDONLY));
           RETURN_IF_ERROR(t.fs().Read(t.lane(), opened, 0, 8).status());
           t.fs().Release(t.lane(), opened);
           RETURN_IF_ERROR(t.fs().ReadDirectory(t.lane(), t.d1, 0, 4096, true).status());
         }
         return Status::Ok();
       },
       {"d1/f", "d1"},
       {}},
      {"what only looks",
       [](Tree& t) {
         t.mount.Stat(t.f);
         t.mount.InodeOf("h", t.d2);
         RETURN_IF_ERROR(t.fs().ReadDirectory(t.lane(), t.d2, 2, 4096, true).status());
         return t.fs().Read(t.lane(), t.file, 0, 8).status();
       },
       {},
       {}},
      {"what fails",
       [](Tree& t) {
         EXPECT_EQ(t.fs().Unlink(t.lane(), t.d1, "new").code(), ENOENT);
         EXPECT_EQ(t.fs().MakeDirectory(t.lane(), {0, 0}, t.d1, "f", 0755).status().code(), EEXIST);
         EXPECT_EQ(t.Rename("d1/f", "d2/h", RENAME_NOREPLACE).code(), EEXIST);
         return Status::Ok();
       },
       {},
       {}},
  };
  return rows;
}

}  // namespace

TEST(Grants, EachOperation_CallsBackWhatItChangesAndNoMore) {
  for (const Row& row : Rows()) {
    SCOPED_TRACE(row.what);
    MemoryVolume volume(uint64_t{16} << 20);
    Told own;
    Told told;
    Told bystander;
    Tree tree(volume, &own);
    Mount holder(volume, &told);
    Mount other(volume, &bystander);
    std::map<std::string, uint64_t> numbers;
    for (const char* path : kInodes) {
      const auto [parent, name] = tree.EntryOf(path);
      numbers[path] = holder.InodeOf(name, parent);
      EXPECT_GT(holder.lane->keep(nullptr).attributes, 0.0) << path;
    }
    for (const char* path : kEntries) {
      const auto [parent, name] = tree.EntryOf(path);
      holder.InodeOf(name, parent);
      EXPECT_GT(holder.lane->keep(nullptr).entry, 0.0) << path;
    }
    const Status done = row.operation(tree);
    EXPECT_TRUE(done.ok()) << done.ToString();
    std::set<uint64_t> inodes;
    for (const std::string& path : row.inodes) {
      inodes.insert(numbers.at(path));
    }
    std::set<std::pair<uint64_t, std::string>> entries;
    for (const std::string& path : row.entries) {
      entries.insert(tree.EntryOf(path));
    }
    EXPECT_EQ(told.inodes(), inodes);
    EXPECT_EQ(told.entries(), entries);
    EXPECT_TRUE(bystander.inodes().empty() && bystander.entries().empty());
    EXPECT_TRUE(own.inodes().empty() && own.entries().empty());
  }
}

TEST(Grants, Recall_IsForOnceOnly) {
  MemoryVolume volume(uint64_t{16} << 20);
  Told told;
  Tree tree(volume, nullptr);
  Mount holder(volume, &told);
  holder.Stat(tree.f);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(tree.mount.Write(tree.file, 0, "x").ok());
  }
  EXPECT_EQ(holder.Metric("fs_recalls_total"), 1u);
}

TEST(Grants, Rename_ItsOwnSessionHoldsTheNewName) {
  MemoryVolume volume(uint64_t{16} << 20);
  Told told;
  Tree renamer(volume, &told);
  Mount other(volume);
  ASSERT_TRUE(renamer.Rename("d1/f", "d2/new").ok());
  ASSERT_TRUE(other.fs->Unlink(*other.lane, renamer.d2, "new").ok());
  EXPECT_TRUE(told.entries().contains({renamer.d2, "new"})) << "the kernel has moved the entry";
}

TEST(Grants, Keep_NothingAfterARecallThatOvertookTheReply) {
  MemoryVolume volume(uint64_t{16} << 20);
  Told told;
  Tree tree(volume, nullptr);
  Mount holder(volume, &told);
  holder.Stat(tree.f);
  EXPECT_GT(holder.lane->keep(nullptr).attributes, 0.0);
  ASSERT_TRUE(tree.mount.Write(tree.file, 0, "x").ok());
  EXPECT_EQ(holder.lane->keep(nullptr).attributes, 0.0) << "asked for before, to be given to the kernel now";
}

// The recall that a look misses must find what the look allows.
TEST(Grants, Keep_IsNotedBeforeTheLookForRecalls) {
  class Recalling final : public client::KernelCache {
   public:
    bool InvalidateInode(uint64_t, uint64_t, uint64_t) override { return true; }
    void InvalidateAttributes(uint64_t, std::chrono::steady_clock::time_point) override {}
    [[nodiscard]] bool InvalidateEntry(uint64_t, std::string_view) override { return true; }
    void ServerLost() override {}
    [[nodiscard]] bool AboutToGive(uint64_t ino, uint64_t, Nanoseconds entry) override {
      given = ino;
      lasting = entry;
      if (recall) {
        kept->NoteRecall();
      }
      return gives_entries;
    }
    client::KeptByKernel* kept = nullptr;
    bool recall = false;
    bool gives_entries = true;
    uint64_t given = 0;
    Nanoseconds lasting{0};
  } cache;
  client::KeptByKernel kept(&cache);
  cache.kept = &kept;
  client::LaneGrants grants(kept);
  const Attributes attributes{.ino = 7, .mode = S_IFREG};
  grants.BeginRequest();
  grants.Granted(50'000, 50'000);
  EXPECT_GT(grants.keep(&attributes).entry, 0.0);
  EXPECT_GT(grants.keep(&attributes).attributes, 0.0);
  EXPECT_EQ(cache.given, 7u);
  EXPECT_GT(cache.lasting, std::chrono::seconds(1));
  cache.gives_entries = false;
  EXPECT_EQ(grants.keep(&attributes).entry, 0.0);
  EXPECT_GT(grants.keep(&attributes).attributes, 0.0);
  cache.gives_entries = cache.recall = true;
  EXPECT_EQ(grants.keep(&attributes).entry, 0.0);
  EXPECT_EQ(grants.keep(&attributes).attributes, 0.0);
}

TEST(Grants, Keep_NothingAfterAnOwnChangeThatOvertookTheReply) {
  MemoryVolume volume(uint64_t{16} << 20);
  Told told;
  Tree tree(volume, &told);
  const auto lane = tree.fs().OpenLane();
  ASSERT_TRUE(lane.ok());
  const auto kept_after = [&](Status (*change)(Tree&)) {
    const auto attributes = tree.fs().GetAttributes(**lane, tree.f);
    EXPECT_TRUE(attributes.ok());
    EXPECT_GT((*lane)->keep(&*attributes).attributes, 0.0);
    EXPECT_TRUE(change(tree).ok());
    return (*lane)->keep(&*attributes).attributes;
  };
  EXPECT_EQ(kept_after([](Tree& t) { return t.Rename("d1/f", "d2/new"); }), 0.0);
  EXPECT_EQ(kept_after([](Tree& t) { return t.fs().SetXattr(t.lane(), t.f, "user.a", {}, 0, false); }), 0.0);
  EXPECT_EQ(kept_after([](Tree& t) { return t.fs().RemoveXattr(t.lane(), t.f, "user.a"); }), 0.0);
  EXPECT_EQ(kept_after([](Tree& t) {
              return t.fs().Allocate(t.lane(), t.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096);
            }),
            0.0);
}

TEST(Grants, AChangeThatWasGivenUp_IsTakenFromItsOwnKernelWhenItHasBeenMade) {
  struct Case {
    uint16_t opcode;
    Status (*change)(Tree&);
    std::set<std::string> entries;
  };
  const Case cases[] = {
      {kFsMake,
       [](Tree& t) {
         return t.fs().MakeDirectory(t.lane(), {0, 0}, t.d1, "new", 0755).status();
       },
       {"d1/new"}},
      {kFsCreate,
       [](Tree& t) {
         return t.fs().Create(t.lane(), {0, 0}, t.d1, "new", 0644, O_RDWR).status();
       },
       {"d1/new"}},
      {kFsUnlink, [](Tree& t) { return t.fs().Unlink(t.lane(), t.d2, "h"); }, {"d2/h"}},
      {kFsRename, [](Tree& t) { return t.Rename("d1/f", "d2/new"); }, {"d1/f", "d2/new"}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(*one.entries.begin());
    MemoryVolume volume(uint64_t{16} << 20);
    Told told;
    Tree tree(volume, &told);
    volume.tlib().GiveUp(one.opcode);
    EXPECT_EQ(one.change(tree).code(), ETIMEDOUT);
    std::set<uint64_t> inodes;
    std::set<std::pair<uint64_t, std::string>> entries;
    for (const std::string& path : one.entries) {
      entries.insert(tree.EntryOf(path));
      inodes.insert(tree.EntryOf(path).first);
    }
    EXPECT_TRUE(Eventually([&] { return told.entries() == entries && told.inodes() == inodes; }));
  }
}

TEST(Grants, Keep_NothingWithoutACache) {
  MemoryVolume volume(uint64_t{16} << 20);
  Tree tree(volume, nullptr);
  tree.mount.Stat(tree.f);
  EXPECT_EQ(tree.mount.lane->keep(nullptr).attributes, 0.0);
  tree.mount.InodeOf("f", tree.d1);
  EXPECT_EQ(tree.mount.lane->keep(nullptr).entry, 0.0);
}

TEST(Grants, ASilentHolder_IsWaitedForUntilItsGrantEnds) {
  constexpr milliseconds kLease{400};
  MemoryVolume volume(uint64_t{16} << 20, {.recall = milliseconds(20), .lease = kLease, .drift = milliseconds(50)});
  Told told;
  Tree tree(volume, nullptr);
  Mount holder(volume, &told);
  const auto granted = std::chrono::steady_clock::now();
  holder.Stat(tree.f);
  EXPECT_LE(holder.lane->keep(nullptr).attributes, std::chrono::duration<double>(kLease).count());
  volume.tlib().Mute(volume.tlib().last_session());
  ASSERT_TRUE(tree.mount.Write(tree.file, 0, "x").ok());
  EXPECT_GE(std::chrono::steady_clock::now() - granted, kLease);
  EXPECT_TRUE(holder.fs->GetAttributes(*holder.lane, tree.f).ok());
  EXPECT_EQ(holder.Metric("link_reconnections_total"), 1u) << "it was expelled";
}

TEST(Grants, AHolderThatWasCutOff_IsWaitedForUntilItsGrantEnds) {
  constexpr milliseconds kLease{400};
  MemoryVolume volume(uint64_t{16} << 20, {.lease = kLease, .drift = milliseconds(50)});
  Told told;
  Tree tree(volume, nullptr);
  Mount holder(volume, &told);
  const auto granted = std::chrono::steady_clock::now();
  holder.Stat(tree.f);
  volume.tlib().Expel({volume.tlib().last_session()}, "as if the connection had broken");
  ASSERT_TRUE(tree.mount.Write(tree.file, 0, "x").ok());
  EXPECT_GE(std::chrono::steady_clock::now() - granted, kLease) << "its kernel did not notice";
}

TEST(Grants, AHolderThatHasEnded_IsNotWaitedFor) {
  constexpr std::chrono::seconds kLease{50};
  MemoryVolume volume(uint64_t{16} << 20, {.lease = kLease});
  Told told;
  Tree tree(volume, nullptr);
  const auto began = std::chrono::steady_clock::now();
  {
    Mount holder(volume, &told);
    holder.Stat(tree.f);
    EXPECT_GT(holder.lane->keep(nullptr).attributes, 0.0);
  }
  EXPECT_TRUE(tree.mount.Write(tree.file, 0, "x").ok());
  EXPECT_LT(std::chrono::steady_clock::now() - began, kLease);
}

}  // namespace termfs::fs
