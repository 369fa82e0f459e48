// SPDX-License-Identifier: Apache-2.0
#include "fs/server/inode_table.h"

namespace termfs::fs::server {

InodeRef::~InodeRef() {
  if (inode_ != nullptr) {
    table_->Unref(inode_);
  }
}

InodeRef InodeTable::Get(uint64_t ino) {
  Shard& shard = ShardOf(ino);
  MutexLock lock(shard.mutex);
  auto& entry = shard.entries[ino];
  if (entry == nullptr) {
    entry = std::make_unique<Entry>(ino);
  }
  ++entry->references;
  return {this, &entry->inode};
}

InodeRef InodeTable::Find(uint64_t ino) {
  Shard& shard = ShardOf(ino);
  MutexLock lock(shard.mutex);
  const auto found = shard.entries.find(ino);
  if (found == shard.entries.end()) {
    return {};
  }
  ++found->second->references;
  return {this, &found->second->inode};
}

std::vector<InodeRef> InodeTable::All() {
  std::vector<InodeRef> all;
  for (Shard& shard : shards_) {
    MutexLock lock(shard.mutex);
    for (auto& [ino, entry] : shard.entries) {
      ++entry->references;
      all.push_back(InodeRef(this, &entry->inode));
    }
  }
  return all;
}

size_t InodeTable::size() const {
  size_t count = 0;
  for (const Shard& shard : shards_) {
    MutexLock lock(shard.mutex);
    count += shard.entries.size();
  }
  return count;
}

void InodeTable::Unref(Inode* inode) {
  Shard& shard = ShardOf(inode->ino);
  std::unique_ptr<Entry> ended;
  MutexLock lock(shard.mutex);
  const auto found = shard.entries.find(inode->ino);
  if (--found->second->references > 0) {
    return;
  }
  bool needed;
  {
    MutexLock inode_lock(inode->mutex);
    needed = !inode->opens.empty() || inode->times_dirty || inode->atime_dirty || inode->ahead_noted;
  }
  if (!needed) {
    ended = std::move(found->second);
    shard.entries.erase(found);
  }
}

}  // namespace termfs::fs::server
