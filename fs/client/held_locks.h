// SPDX-License-Identifier: Apache-2.0
//
// HeldLocks: what this client has locked, as far as the server has said. It is said to a server that was started anew,
// and tells which closes have something to unlock.
//
// Requests about one owner's locks may be under way side by side, and their replies come in any order: the server's
// numbers of changes say which of them counts.
//
// Thread-safety: any thread. Ownership: an Asking ends before the table.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "fs/lock_ranges.h"

namespace termfs::fs::client {

struct LockKey {
  uint64_t ino = 0;
  bool flock = false;
  uint64_t owner = 0;  // the kernel's number for a process or an open file
  auto operator<=>(const LockKey&) const = default;
};

class HeldLocks {
 public:
  // Lives from before a request is sent until its reply has been noted.
  class Asking {
   public:
    // `handle`: the number of the one by which it is asked.
    Asking(HeldLocks& held, const LockKey& key, uint64_t handle)
        : held_(held), key_(key), handle_(handle), since_(held_.Begin(key_)) {}
    ~Asking() { held_.End(key_, since_); }
    Asking(const Asking&) = delete;
    Asking& operator=(const Asking&) = delete;
    // The server has done it.
    void Done(const LockRange& range, LockType type, uint64_t change) {
      held_.Note(key_, handle_, range, type, change);
    }
    // The server may have done it.
    void Doubt(LockType type) { held_.Doubt(key_, handle_, type); }
    // The server has not done it yet, as it says to who asked since then: it may last, and what was noted before that
    // does not matter to it any more.
    uint64_t Now() { return held_.notes(); }
    void NotYet(uint64_t then) { since_ = held_.Renew(key_, since_, then); }

   private:
    HeldLocks& held_;
    const LockKey key_;
    const uint64_t handle_;
    uint64_t since_;
  };

  // False: the owner has nothing locked, and asks for nothing.
  bool Any(const LockKey& key) EXCLUDES(mutex_);
  // The server is about to be told that they end with that handle: they are forgotten, and until EndedWith nobody asks
  // for any of that key. False: there are none, or another handle was the last to get some. (The kernel may give an
  // open file the number of one that it has closed before the release of that has come.)
  bool EndWith(const LockKey& key, uint64_t handle) EXCLUDES(mutex_);
  void EndedWith(const LockKey& key) EXCLUDES(mutex_);
  struct Held {
    LockKey key;
    LockRange range;
  };
  std::vector<Held> All() EXCLUDES(mutex_);
  void ForgetFile(uint64_t ino) EXCLUDES(mutex_);
  void ForgetAll() EXCLUDES(mutex_);
  // Of ranges, which an earlier change may still be heard of.
  size_t recent() EXCLUDES(mutex_);

 private:
  struct Change {
    uint64_t end = 0;
    uint64_t number = 0;
    uint64_t noted = 0;
  };
  struct Entry {
    LockRanges ranges;
    std::multiset<uint64_t> asking;  // since when
    uint64_t handle = 0;             // the last that got a lock
    bool doubt = false;
    // The last one of each byte, by their starts; those that were noted since the oldest of `asking`.
    std::map<uint64_t, Change> recent;
  };
  uint64_t Begin(const LockKey& key) EXCLUDES(mutex_);
  void End(const LockKey& key, uint64_t since) EXCLUDES(mutex_);
  uint64_t Renew(const LockKey& key, uint64_t since, uint64_t then) EXCLUDES(mutex_);
  uint64_t notes() EXCLUDES(mutex_);
  void Note(const LockKey& key, uint64_t handle, const LockRange& range, LockType type, uint64_t change)
      EXCLUDES(mutex_);
  void Doubt(const LockKey& key, uint64_t handle, LockType type) EXCLUDES(mutex_);
  static void Clear(Entry& entry);
  // It asks no more since then.
  static void Leave(Entry& entry, uint64_t since);
  // Notes the change where no later one is known. Returns these ranges.
  static std::vector<std::pair<uint64_t, uint64_t>> Decide(Entry& entry, const LockRange& range, const Change& change);

  Mutex mutex_;
  uint64_t notes_ GUARDED_BY(mutex_) = 0;  // so many, ever
  std::map<LockKey, Entry> entries_ GUARDED_BY(mutex_);
  std::set<LockKey> ending_ GUARDED_BY(mutex_);
  CondVar ended_;
};

}  // namespace termfs::fs::client
