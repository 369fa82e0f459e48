// SPDX-License-Identifier: Apache-2.0
//
// ReplacedInodes: inodes that have lost a name to another inode, by rename, for a grace time afterwards. A kernel that
// has looked the name up before the rename asks for the inode by its number after it, and must find it: the name has
// been there all the time. See "A replaced name is always there".
//
// An inode that loses its last name within its grace is an orphan of the store that every session may open by its
// number, until the grace ends. A grace ends early when there are too many of them, or when the space is needed.
//
//   BeginGrace --Add--> in its grace --TakeEnded, TakeAll--> over: an orphan is to be released
//        +-----------CancelGrace, when the transaction has failed-----> as before
//
// Thread-safety: any thread. Ownership: the inode table outlives it.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "fs/server/inode_table.h"
#include "metadata/types.h"

namespace termfs::fs::server {

class ReplacedInodes {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // What the orphans have that were not open when they lost their names: it is free as soon as it is needed.
  struct Use {
    uint64_t pages = 0;
    uint64_t inodes = 0;
  };

  // `grace`: 0: there is none. `max_pages`: so many orphans may have, beside the last one.
  ReplacedInodes(std::chrono::milliseconds grace, size_t max_inodes, uint64_t max_pages)
      : grace_(grace), max_inodes_(max_inodes), max_pages_(max_pages) {}

  bool enabled() const { return grace_.count() > 0; }

  // Before the transaction that takes the name: from now on an open by its number finds it.
  static void BeginGrace(Inode& inode);
  // The transaction has failed, or took another inode's name.
  static void CancelGrace(Inode& inode);
  // It has been committed at `now`. `removed`: what that says of the inode; null: the inode has a name. REQUIRES:
  // BeginGrace was called for it.
  void Add(InodeRef inode, const metadata::Removed* removed, Time now) EXCLUDES(mutex_);

  // Orphans whose grace has ended; those that more than one was begun for are named when the last one ends.
  std::vector<uint64_t> TakeEnded(Time now) EXCLUDES(mutex_);
  std::vector<uint64_t> TakeAll() EXCLUDES(mutex_);
  // When the next grace ends. Nothing: there is none.
  std::optional<Time> NextEnd() const EXCLUDES(mutex_);

  // TakeEnded would name some now, though their time has not come.
  bool AnyEndedEarly() const EXCLUDES(mutex_);
  bool empty() const EXCLUDES(mutex_);
  Use use() const EXCLUDES(mutex_);
  Use UseOf(metadata::ProjectNumber project) const EXCLUDES(mutex_);

 private:
  struct Grace {
    InodeRef inode;
    Time end;
    Use use;
    metadata::ProjectNumber project = 0;
  };
  void EndFirst(std::vector<uint64_t>& orphans) REQUIRES(mutex_);

  const std::chrono::milliseconds grace_;
  const size_t max_inodes_;
  const uint64_t max_pages_;
  mutable Mutex mutex_;                             // before an inode's
  std::deque<Grace> graces_ GUARDED_BY(mutex_);     // by their ends
  std::vector<uint64_t> ended_ GUARDED_BY(mutex_);  // early
  Use use_ GUARDED_BY(mutex_);
  std::unordered_map<metadata::ProjectNumber, Use> use_of_ GUARDED_BY(mutex_);  // of those in quota trees
};

}  // namespace termfs::fs::server
