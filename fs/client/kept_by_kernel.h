// SPDX-License-Identifier: Apache-2.0
//
// KeptByKernel: what a mount has to know of what its kernel was granted. LaneGrants: of one lane, what the reply to its
// last request grants.
//
//   recalls   counted before the kernel is told; a reply to what was asked before grants nothing when the kernel gets
//             it later. The loss of a session counts as one.
//   inodes    whose attributes the kernel was given to keep, for as long as that lasts: they are told to it when the
//             session is lost. Entries need no such list: a new epoch makes them all void.
//
// Thread-safety: KeptByKernel any thread; LaneGrants the lane's.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "fs/client/directory_changes.h"
#include "fs/client/file_system.h"

namespace termfs::fs::wire {
struct Attributes;
}

namespace termfs::fs::client {

class KeptByKernel {
 public:
  explicit KeptByKernel(KernelCache* cache = nullptr) : cache_(cache) {}

  void NoteRecall() { recalls_.fetch_add(1, std::memory_order_seq_cst); }
  // This mount has changed an inode in a way that its kernel does not number: it drops what it has, and takes a late
  // reply to what was asked before.
  void NoteOwnChange() { NoteRecall(); }
  uint64_t recalls() const { return recalls_.load(std::memory_order_seq_cst); }
  DirectoryChanges& changes() { return changes_; }

  // Before a look whether anything was recalled, and before the kernel gets the attributes, granted for `lasting` from
  // some moment that is past. False: too many are remembered, these must not be kept.
  bool Remember(uint64_t ino, Nanoseconds lasting) EXCLUDES(mutex_);
  // As KernelCache's. After Remember.
  bool AboutToGive(uint64_t ino, uint64_t directory, Nanoseconds entry) {
    return cache_ == nullptr || cache_->AboutToGive(ino, directory, entry);
  }
  // The session is lost. Counts as a recall; returns what was remembered and may still be kept.
  std::vector<uint64_t> Void() EXCLUDES(mutex_);

 private:
  KernelCache* const cache_;
  DirectoryChanges changes_;
  std::atomic<uint64_t> recalls_{0};
  Mutex mutex_;
  // What was remembered since `since_`, and before that; the latter is forgotten when all of it has ended.
  std::unordered_set<uint64_t> recent_ GUARDED_BY(mutex_);
  std::unordered_set<uint64_t> earlier_ GUARDED_BY(mutex_);
  BootTime since_ GUARDED_BY(mutex_);
  Nanoseconds longest_ GUARDED_BY(mutex_){0};  // that anything lasts
};

class LaneGrants {
 public:
  explicit LaneGrants(KeptByKernel& kept) : kept_(kept) {}

  // A request is about to be sent, maybe once more; the time of what its reply grants counts from here.
  void BeginRequest();
  // The reply grants so much.
  void Granted(uint32_t entry_ms, uint32_t attributes_ms) {
    entry_ms_ = entry_ms;
    attributes_ms_ = attributes_ms;
    directory_ = 0;
  }
  // What it grants of names is of this directory.
  void GrantedIn(uint64_t directory) { directory_ = directory; }
  // What the reply says of the directory that was changed.
  void Bring(DirectoryChanges::Change& change, const wire::Attributes* directory, uint32_t granted_ms) const;
  // When a grant of the reply for so long ends; nothing, when there is none, or anything was recalled since the request
  // was sent.
  std::optional<BootTime> End(uint32_t granted_ms) const;
  // The same for the attributes that the reply grants.
  std::optional<BootTime> AttributesEnd() const { return End(attributes_ms_); }
  // Not before the last request was sent.
  BootTime asked() const { return asked_; }
  // Whether what has been brought along can answer instead of a request: its time is not over, and nothing was recalled
  // since.
  bool MayAnswer(const DirectoryChanges::Brought& brought);
  // As Lane::keep. Nothing, when anything was recalled since the request was sent: it may be this.
  Keep keep(const Attributes* attributes) const;

 private:
  bool Recalled() const { return kept_.recalls() != recalls_before_; }

  KeptByKernel& kept_;
  uint64_t recalls_before_ = 0;
  BootTime sent_;   // what a grant's time is counted from
  BootTime asked_;  // when the answer was known to hold, or later
  uint32_t entry_ms_ = 0;
  uint32_t attributes_ms_ = 0;
  uint64_t directory_ = 0;  // 0: not known
};

}  // namespace termfs::fs::client
