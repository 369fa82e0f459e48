// SPDX-License-Identifier: Apache-2.0
//
// InodeTable: the inodes in memory, by number. One stays while somebody holds a reference, has it open, or owes the
// store its times; so whoever finds none knows that the store is up to date.
//
// Thread-safety: any thread. Ownership: references must end before the table.
#pragma once

#include <array>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "fs/server/inode.h"

namespace termfs::fs::server {

class InodeTable;

class InodeRef {
 public:
  InodeRef() = default;
  InodeRef(InodeRef&& other) noexcept
      : table_(std::exchange(other.table_, nullptr)), inode_(std::exchange(other.inode_, nullptr)) {}
  InodeRef& operator=(InodeRef&& other) noexcept {
    std::swap(table_, other.table_);
    std::swap(inode_, other.inode_);
    return *this;
  }
  InodeRef(const InodeRef&) = delete;
  InodeRef& operator=(const InodeRef&) = delete;
  ~InodeRef();

  explicit operator bool() const { return inode_ != nullptr; }
  Inode& operator*() const { return *inode_; }
  Inode* operator->() const { return inode_; }

 private:
  friend class InodeTable;
  InodeRef(InodeTable* table, Inode* inode) : table_(table), inode_(inode) {}
  InodeTable* table_ = nullptr;
  Inode* inode_ = nullptr;
};

class InodeTable {
 public:
  // The inode, made (not loaded) when it is not there.
  InodeRef Get(uint64_t ino);
  // Nothing when it is not there.
  InodeRef Find(uint64_t ino);
  // References to all there are now.
  std::vector<InodeRef> All();
  size_t size() const;

 private:
  friend class InodeRef;
  struct Entry {
    explicit Entry(uint64_t ino) : inode(ino) {}
    Inode inode;
    uint64_t references = 0;
  };
  struct Shard {
    mutable Mutex mutex;
    std::unordered_map<uint64_t, std::unique_ptr<Entry>> entries GUARDED_BY(mutex);
  };
  static constexpr size_t kShards = 16;
  Shard& ShardOf(uint64_t ino) { return shards_[ino % kShards]; }
  void Unref(Inode* inode);

  std::array<Shard, kShards> shards_;
};

}  // namespace termfs::fs::server
