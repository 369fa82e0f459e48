// SPDX-License-Identifier: Apache-2.0
//
// Thousands of random operations against a plain tree in memory that says what each must return, with restarts and
// Check in between; at the end everything is deleted and all space must be back. A failure prints its seed.
#include <map>
#include <set>

#include "base/random.h"
#include "tests/unit/metadata/test_volume.h"

namespace termfs::metadata {
namespace {

using ::testing::IsEmpty;

constexpr uint64_t kCapacity = 600;  // small, so that it fills up
constexpr uint64_t kFilePages = 100;

struct Node {
  bool directory = false;
  int links = 0;
  uint64_t size = 0;
  std::map<std::string, InodeNumber> entries;
  InodeNumber parent = 0;
  std::set<uint64_t> pages;
};

class Model {
 public:
  Model(KeyValueStore& store, uint64_t seed) : store_(store), random_(seed) {
    nodes_[kRootInode] = {true, 1, 0, {}, kRootInode, {}};
    Open();
  }

  void Run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) {
      Step();
      if (i % 500 == 499) {
        Verify();
        ns_.reset();
        Open();
      }
    }
    DeleteAll(kRootInode);
    for (const InodeNumber ino : std::set<InodeNumber>(orphans_)) {
      Release(ino);
    }
    CommitFree();
    Verify();
    EXPECT_EQ(ns_->StatFs().free_pages, kCapacity);
    EXPECT_EQ(ns_->StatFs().inodes, 1u);
  }

 private:
  void Open() {
    auto opened = Namespace::Open(store_);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    ns_ = std::move(opened).value();
  }

  void Step() {
    now_ += Nanoseconds(1);
    switch (random_.Below(12)) {
      case 0:
      case 1:
        return Create();
      case 2:
        return Link();
      case 3:
        return Unlink();
      case 4:
        return Rmdir();
      case 5:
      case 6:
        return Rename();
      case 7:
      case 8:
        return Allocate();
      case 9:
        return random_.Below(2) == 0 ? Truncate() : Punch();
      case 10:
        return orphans_.empty() ? CommitFree() : Release(*orphans_.begin());
      default:
        return CommitFree();
    }
  }

  InodeNumber AnyDirectory() {
    std::vector<InodeNumber> all;
    for (const auto& [ino, node] : nodes_) {
      if (node.directory && node.links > 0) {
        all.push_back(ino);
      }
    }
    return all[random_.Below(all.size())];
  }
  // 0 when there is none.
  InodeNumber AnyFile() {
    std::vector<InodeNumber> all;
    for (const auto& [ino, node] : nodes_) {
      if (!node.directory) {
        all.push_back(ino);
      }
    }
    return all.empty() ? 0 : all[random_.Below(all.size())];
  }
  std::string AnyName() { return std::string(1, static_cast<char>('a' + random_.Below(5))); }
  InodeNumber At(InodeNumber dir, const std::string& name) const {
    const auto& entries = nodes_.at(dir).entries;
    const auto it = entries.find(name);
    return it == entries.end() ? 0 : it->second;
  }

  void Create() {
    const InodeNumber dir = AnyDirectory();
    const std::string name = AnyName();
    const bool directory = random_.Below(3) == 0;
    const auto created = ns_->Create(dir, name, {directory ? S_IFDIR | 0755u : S_IFREG | 0644u, 0, ""}, {}, now_);
    ASSERT_EQ(created.status().code(), At(dir, name) != 0 ? EEXIST : 0);
    if (created.ok()) {
      ASSERT_FALSE(nodes_.contains(created->ino));
      nodes_[created->ino] = {directory, 1, 0, {}, dir, {}};
      nodes_[dir].entries[name] = created->ino;
    }
  }

  void Link() {
    const InodeNumber file = AnyFile();
    if (file == 0) {
      return;
    }
    const InodeNumber dir = AnyDirectory();
    const std::string name = AnyName();
    const int code = ns_->Link(file, dir, name, now_).status().code();
    ASSERT_EQ(code, nodes_[file].links == 0 ? ENOENT : At(dir, name) != 0 ? EEXIST : 0);
    if (code == 0) {
      ++nodes_[file].links;
      nodes_[dir].entries[name] = file;
    }
  }

  void DropLink(InodeNumber ino, const Removed& removed, bool keep_open) {
    ASSERT_EQ(removed.ino, ino);
    ASSERT_EQ(removed.last_link, nodes_[ino].links == 1);
    if (--nodes_[ino].links > 0) {
      return;
    }
    ASSERT_TRUE(removed.orphaned || !keep_open);
    if (removed.orphaned) {
      orphans_.insert(ino);
    } else {
      nodes_.erase(ino);
    }
  }

  void Unlink() {
    const InodeNumber dir = AnyDirectory();
    const std::string name = AnyName();
    const InodeNumber ino = At(dir, name);
    const bool keep_open = random_.Below(2) == 0;
    const auto removed = ns_->Unlink(dir, name, keep_open ? kOpen : kNotOpen, now_);
    ASSERT_EQ(removed.status().code(), ino == 0 ? ENOENT : nodes_[ino].directory ? EISDIR : 0);
    if (removed.ok()) {
      nodes_[dir].entries.erase(name);
      DropLink(ino, *removed, keep_open);
    }
  }

  void Rmdir() {
    const InodeNumber dir = AnyDirectory();
    const std::string name = AnyName();
    const InodeNumber ino = At(dir, name);
    const bool keep_open = random_.Below(2) == 0;
    const auto removed = ns_->Rmdir(dir, name, keep_open ? kOpen : kNotOpen, now_);
    ASSERT_EQ(removed.status().code(), ino == 0                       ? ENOENT
                                       : !nodes_[ino].directory       ? ENOTDIR
                                       : !nodes_[ino].entries.empty() ? ENOTEMPTY
                                                                      : 0);
    if (removed.ok()) {
      nodes_[dir].entries.erase(name);
      DropLink(ino, *removed, keep_open);
    }
  }

  bool Below(InodeNumber dir, InodeNumber ancestor) const {
    while (dir != ancestor && dir != kRootInode) {
      dir = nodes_.at(dir).parent;
    }
    return dir == ancestor;
  }

  int RenameCode(InodeNumber from, InodeNumber source, InodeNumber to, InodeNumber target, RenameMode mode) {
    if (source == 0) {
      return ENOENT;
    }
    if (mode == RenameMode::kNoReplace && target != 0) {
      return EEXIST;
    }
    if (mode == RenameMode::kExchange && target == 0) {
      return ENOENT;
    }
    if (source == target) {
      return 0;
    }
    const bool exchange = mode == RenameMode::kExchange;
    if (from != to && nodes_[source].directory && Below(to, source)) {
      return EINVAL;
    }
    if (from != to && exchange && nodes_[target].directory && Below(from, target)) {
      return EINVAL;
    }
    if (target == 0 || exchange) {
      return 0;
    }
    if (nodes_[source].directory != nodes_[target].directory) {
      return nodes_[source].directory ? ENOTDIR : EISDIR;
    }
    return nodes_[target].entries.empty() ? 0 : ENOTEMPTY;
  }

  void Rename() {
    const InodeNumber from = AnyDirectory();
    const InodeNumber to = AnyDirectory();
    const std::string old_name = AnyName();
    const std::string new_name = AnyName();
    const auto mode = static_cast<RenameMode>(random_.Below(3));
    const bool keep_open = random_.Below(2) == 0;
    const InodeNumber source = At(from, old_name);
    const InodeNumber target = At(to, new_name);
    const auto renamed = ns_->Rename(from, old_name, to, new_name, mode, keep_open ? kOpen : kNotOpen, now_);
    ASSERT_EQ(renamed.status().code(), RenameCode(from, source, to, target, mode));
    if (!renamed.ok() || source == target) {
      return;
    }
    nodes_[to].entries[new_name] = source;
    nodes_[source].parent = to;
    if (mode == RenameMode::kExchange) {
      nodes_[from].entries[old_name] = target;
      nodes_[target].parent = from;
      return;
    }
    nodes_[from].entries.erase(old_name);
    if (target != 0) {
      DropLink(target, renamed->replaced, keep_open);
    }
  }

  uint64_t UsedPages() const {
    uint64_t used = 0;
    for (const auto& [ino, node] : nodes_) {
      used += node.pages.size();
    }
    return used;
  }

  void Allocate() {
    const InodeNumber file = AnyFile();
    if (file == 0) {
      return;
    }
    std::set<uint64_t>& pages = nodes_[file].pages;
    const uint64_t first = random_.Below(kFilePages);
    const uint64_t count = 1 + random_.Below(kFilePages - first);
    uint64_t missing = 0;
    for (uint64_t page = first; page < first + count; ++page) {
      missing += pages.contains(page) ? 0 : 1;
    }
    const std::optional<PageIndex> goal =
        random_.Below(4) == 0 ? std::optional(PageIndex{random_.Below(kCapacity + 10)}) : std::nullopt;
    const bool fits = missing <= ns_->StatFs().free_pages;
    const auto extents = ns_->AllocateExtents(file, first, count, goal, now_);
    ASSERT_EQ(extents.status().code(), fits ? 0 : ENOSPC);
    if (!extents.ok()) {
      return;
    }
    uint64_t next = first;
    for (const Extent& extent : *extents) {
      ASSERT_EQ(extent.file_page, next);
      for (; next < extent.file_page + extent.pages; ++next) {
        ASSERT_EQ(extent.fresh, pages.insert(next).second);
      }
    }
    ASSERT_EQ(next, first + count);
    const uint64_t size = (first + count) * kPageSize;
    ASSERT_TRUE(ns_->SetSizeAndTimes(file, size, SizeRule::kIfLarger, now_, now_).ok());
    nodes_[file].size = std::max(nodes_[file].size, size);
  }

  void Truncate() {
    const InodeNumber file = AnyFile();
    if (file == 0) {
      return;
    }
    Node& node = nodes_[file];
    const uint64_t size = random_.Below(kFilePages * kPageSize);
    const auto before = ns_->GetAttr(file);
    ASSERT_TRUE(before.ok());
    if (random_.Below(2) == 0 || before->cut.page() < size / kPageSize) {
      ASSERT_TRUE(ns_->ForgetCut(file, before->cut).ok());
    }
    ASSERT_TRUE(ns_->Truncate(file, size, now_).ok());
    if (size <= node.size) {
      node.pages.erase(node.pages.lower_bound(RoundUpToPage(size) / kPageSize), node.pages.end());
    }
    node.size = size;
  }

  void Punch() {
    const InodeNumber file = AnyFile();
    if (file == 0) {
      return;
    }
    std::set<uint64_t>& pages = nodes_[file].pages;
    const uint64_t first = random_.Below(kFilePages);
    const uint64_t count = 1 + random_.Below(kFilePages);
    ASSERT_FALSE(*ns_->PunchExtents(file, first, count, now_));
    pages.erase(pages.lower_bound(first), pages.lower_bound(first + count));
  }

  void Release(InodeNumber ino) {
    ASSERT_TRUE(ns_->ReleaseOrphan(ino).ok());
    orphans_.erase(ino);
    nodes_.erase(ino);
  }

  void CommitFree() {
    const auto ranges = ns_->ListPendingFree({}, 20);
    ASSERT_TRUE(ranges.ok());
    ASSERT_TRUE(ns_->CommitFree(*ranges).ok());
    const SpaceUse use = ns_->StatFs();
    ASSERT_EQ(use.free_pages + use.pending_pages + UsedPages(), kCapacity);
    if (ranges->size() == 20) {
      CommitFree();
    }
  }

  void DeleteAll(InodeNumber dir) {
    const std::map<std::string, InodeNumber> entries = nodes_[dir].entries;
    for (const auto& [name, ino] : entries) {
      const bool directory = nodes_[ino].directory;
      if (directory) {
        DeleteAll(ino);
      }
      const auto removed = directory ? ns_->Rmdir(dir, name, kNotOpen, now_) : ns_->Unlink(dir, name, kNotOpen, now_);
      ASSERT_TRUE(removed.ok()) << removed.status().ToString();
      nodes_[dir].entries.erase(name);
      DropLink(ino, *removed, false);
    }
  }

  void VerifyDirectory(InodeNumber ino, const Node& node, const Attributes& attributes) {
    std::map<std::string, InodeNumber> entries;
    uint32_t subdirectories = 0;
    uint64_t cursor = 0;
    while (true) {
      const auto portion = ns_->ReadDir(ino, cursor, 2);
      ASSERT_TRUE(portion.ok());
      if (portion->empty()) {
        break;
      }
      for (const DirectoryEntry& entry : *portion) {
        entries[entry.name] = entry.ino;
        subdirectories += entry.type == FileType::kDirectory ? 1 : 0;
        cursor = entry.cursor;
      }
    }
    EXPECT_EQ(entries, node.entries);
    EXPECT_EQ(attributes.nlink, node.links == 0 ? 0 : 2 + subdirectories);
    if (node.links > 0) {
      EXPECT_EQ(*ns_->Parent(ino), node.parent);
    }
  }

  void VerifyFile(InodeNumber ino, const Node& node, const Attributes& attributes) {
    EXPECT_EQ(attributes.nlink, static_cast<uint32_t>(node.links));
    EXPECT_EQ(attributes.size, node.size);
    EXPECT_EQ(attributes.blocks, node.pages.size());
    std::set<uint64_t> pages;
    const auto extents = ns_->GetExtents(ino, 0, 1000, 1000);
    ASSERT_TRUE(extents.ok());
    for (const Extent& extent : *extents) {
      for (uint64_t page = 0; page < extent.pages; ++page) {
        pages.insert(extent.file_page + page);
      }
    }
    EXPECT_EQ(pages, node.pages);
  }

  void Verify() {
    for (const auto& [ino, node] : nodes_) {
      const auto attributes = ns_->GetAttr(ino);
      ASSERT_TRUE(attributes.ok());
      ASSERT_EQ(attributes->is_directory(), node.directory);
      node.directory ? VerifyDirectory(ino, node, *attributes) : VerifyFile(ino, node, *attributes);
    }
    EXPECT_EQ(ns_->StatFs().inodes, nodes_.size());
    EXPECT_THAT(Problems(store_), IsEmpty());
  }

  KeyValueStore& store_;
  Random random_;
  std::unique_ptr<Namespace> ns_;
  std::map<InodeNumber, Node> nodes_;
  std::set<InodeNumber> orphans_;
  Nanoseconds now_{0};
};

TEST(NamespaceModel, RandomOperations_InMemory) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    FormatOptions options = SmallVolume(kCapacity);
    options.name_hash_bits = seed % 2 == 0 ? 55 : 1;
    const auto store = NewMemoryStore();
    ASSERT_TRUE(Namespace::Format(*store, options).ok());
    Model(*store, seed).Run(4000);
  }
}

TEST(NamespaceModel, RandomOperations_OnRocksDb) {
  const TemporaryDirectory directory;
  RocksDbOptions options;
  options.create_if_missing = true;
  const auto store = OpenRocksDb(directory.path(), options);
  ASSERT_TRUE(store.ok());
  ASSERT_TRUE(Namespace::Format(**store, SmallVolume(kCapacity)).ok());
  Model(**store, 99).Run(5000);
}

}  // namespace
}  // namespace termfs::metadata
