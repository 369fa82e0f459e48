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
    Asking(HeldLocks& held, const LockKey& key, uint64_t handle) : held_(held), key_(key), handle_(handle) {
      held_.Begin(key_);
    }
    ~Asking() { held_.End(key_); }
    Asking(const Asking&) = delete;
    Asking& operator=(const Asking&) = delete;
    // The server has done it.
    void Done(const LockRange& range, LockType type, uint64_t change) {
      held_.Note(key_, handle_, range, type, change);
    }
    // The server may have done it.
    void Doubt(LockType type) { held_.Doubt(key_, handle_, type); }

   private:
    HeldLocks& held_;
    const LockKey key_;
    const uint64_t handle_;
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

 private:
  struct Change {
    uint64_t start = 0;
    uint64_t end = 0;
    uint64_t number = 0;
  };
  struct Entry {
    LockRanges ranges;
    uint64_t asking = 0;
    uint64_t handle = 0;  // the last that got a lock
    bool doubt = false;
    std::vector<Change> recent;  // since `asking` was 0
  };
  void Begin(const LockKey& key) EXCLUDES(mutex_);
  void End(const LockKey& key) EXCLUDES(mutex_);
  void Note(const LockKey& key, uint64_t handle, const LockRange& range, LockType type, uint64_t change)
      EXCLUDES(mutex_);
  void Doubt(const LockKey& key, uint64_t handle, LockType type) EXCLUDES(mutex_);
  static void Clear(Entry& entry);

  Mutex mutex_;
  std::map<LockKey, Entry> entries_ GUARDED_BY(mutex_);
  std::set<LockKey> ending_ GUARDED_BY(mutex_);
  CondVar ended_;
};

}  // namespace termfs::fs::client
