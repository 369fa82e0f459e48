// SPDX-License-Identifier: Apache-2.0
#include "fs/server/ending.h"

#include "base/log.h"

namespace termfs::fs::server {

bool Ending::MayBeOpen(uint64_t ino) {
  TakeBack();  // of an attempt before
  if (BeginGrace(ino)) {
    return true;
  }
  InodeRef inode = inodes_.Get(ino);
  if (!inode->gate.TryEnter(GateMode::kExclusive)) {
    return true;
  }
  {
    MutexLock lock(inode->mutex);
    // In this order: who has just lost an opener is expected since before.
    if (inode->opens.empty() && !clients_.AnyExpected()) {
      inode->releasing = true;
      inode->ForgetExtents();  // for a copy under way: what it finds is not the file's any more
      inode_ = std::move(inode);
      return false;
    }
  }
  inode->gate.Leave(GateMode::kExclusive);
  return true;
}

bool Ending::BeginGrace(uint64_t ino) {
  if (!replaced_.enabled()) {
    return false;
  }
  InodeRef inode = by_ == By::kReplacement ? inodes_.Get(ino) : inodes_.Find(ino);
  const bool begins = inode && [&] {
    MutexLock lock(inode->mutex);
    return by_ == By::kReplacement || inode->graces > 0;
  }();
  if (begins) {
    ReplacedInodes::BeginGrace(*inode);
    grace_ = std::move(inode);
  }
  return begins;
}

void Ending::Committed(metadata::Removed& removed) {
  if (!removed.last_link) {
    TakeBack();  // an attempt before would have taken one
  }
  if (grace_) {
    replaced_.Add(std::move(grace_), &removed, std::chrono::steady_clock::now());
  }
  if (!inode_) {
    return;
  }
  const InodeRef inode = std::move(inode_);
  if (removed.orphaned) {
    const Status released = names_.ReleaseOrphan(removed.ino);
    removed.orphaned = !released.ok();
    if (!released.ok()) {
      LOG_ERROR("releasing inode {}: {}", removed.ino, released.ToDebugString());
    }
  }
  {
    MutexLock lock(inode->mutex);
    inode->times_dirty = inode->ahead_noted = false;
    inode->ForgetExtents();  // the copy may have looked them up again before the commit
  }
  inode->gate.Leave(GateMode::kExclusive);
}

void Ending::TakeBack() {
  if (const InodeRef begun = std::move(grace_)) {
    ReplacedInodes::CancelGrace(*begun);
  }
  if (!inode_) {
    return;
  }
  const InodeRef inode = std::move(inode_);
  {
    MutexLock lock(inode->mutex);
    inode->releasing = false;
  }
  inode->gate.Leave(GateMode::kExclusive);
}

}  // namespace termfs::fs::server
