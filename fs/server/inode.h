// SPDX-License-Identifier: Apache-2.0
//
// What the server keeps in memory of an inode that is open or being changed: its size and times, which run ahead of the
// store, the extents it has looked up, and which sessions hold what.
//
// Invariants
//   1. `size` and `extents` are the truth for reads; they change only inside the gate. Space is taken out of `extents`
//      before the store frees it, and put in after the store has given it.
//   2. Bytes of allocated pages at or beyond `size` are zeros, unless `tail_dirty`.
//   3. A session that caches a map is in `grants`, with the version it was last sent. While `frozen` (an exclusive
//      operation has begun to revoke) nobody is granted anything.
//   4. `frees` is raised whenever pages leave `extents`. Who reads or writes pages that he looked up earlier looks at
//      it again afterwards (reads) or before each page changes (writes).
//   5. Versions come from one counter of the server; a session never gets the same version twice for two grants, so a
//      revocation up to a version never hits a later grant.
//
// Thread-safety: `mutex` guards the fields; it is not held across waiting. Gates order operations.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "fs/extent_map.h"
#include "fs/proto/data.h"
#include "fs/server/gate.h"
#include "fs/server/task_condition.h"
#include "metadata/types.h"

namespace termfs::fs::server {

struct Opener {
  uint64_t count = 0;
  // Its kernel may have pages of the file: see page_leases.cc. And how often it was given leave to.
  bool caches = false;
  uint64_t leases = 0;
  bool size_unsure = false;       // it had the file open in an earlier session: see fs/server/shrunk.h
  std::vector<uint64_t> drops{};  // tickets of kFsInvalidate that it has not acknowledged
};

// Pages [begin, end); empty when begin >= end.
struct Hull {
  uint64_t begin = ~uint64_t{0};
  uint64_t end = 0;
  void Add(uint64_t first, uint64_t last) {
    begin = std::min(begin, first);
    end = std::max(end, last);
  }
};

struct FileTimes {
  Nanoseconds access;
  Nanoseconds modification;
  Nanoseconds change;
};
// An access now moves the access time: the first one after a change does, and one a day.
bool AccessTimeIsDue(const FileTimes& times, Nanoseconds now);

struct Inode {
  explicit Inode(uint64_t number) : ino(number) {}

  const uint64_t ino;
  Gate gate;
  Gate sync_gate;  // one fsync at a time; exclusive only

  Mutex mutex;
  bool loaded GUARDED_BY(mutex) = false;
  uint32_t mode GUARDED_BY(mutex) = 0;  // changes only inside the gate
  bool mode_known GUARDED_BY(mutex) = false;
  uint64_t size GUARDED_BY(mutex) = 0;
  Nanoseconds atime GUARDED_BY(mutex){0};
  bool atime_dirty GUARDED_BY(mutex) = false;
  Nanoseconds mtime GUARDED_BY(mutex){0};
  Nanoseconds ctime GUARDED_BY(mutex){0};
  bool times_dirty GUARDED_BY(mutex) = false;
  uint64_t times_sequence GUARDED_BY(mutex) = 0;  // raised when they change

  ExtentMap extents GUARDED_BY(mutex);
  std::atomic<uint64_t> frees{0};  // changes only with the mutex held
  // Raised when extents are dropped to save memory: what was looked up in the store before may be out of date.
  uint64_t forgotten GUARDED_BY(mutex) = 0;
  bool tail_dirty GUARDED_BY(mutex) = true;
  // Where the SSD may have what was cut off, as the store has it. `only_cut`: the tail is dirty by that alone.
  metadata::TailCut cut GUARDED_BY(mutex);
  bool only_cut GUARDED_BY(mutex) = false;
  // Space from the size up to this file page was allocated for growth to come; trimmed at the last close. Not beyond
  // the size: there is none.
  uint64_t ahead_end GUARDED_BY(mutex) = 0;
  bool ahead_noted GUARDED_BY(mutex) = false;  // in the store, which TrimAhead or ForgetAhead takes back
  // What was written since the last fsync; everything, when unknown.
  Hull unsynced GUARDED_BY(mutex){0, kMaxFilePages};
  uint64_t failed_flushes GUARDED_BY(mutex) = 0;  // of the region, when it was loaded or synced last

  uint64_t version GUARDED_BY(mutex) = 0;
  uint64_t base GUARDED_BY(mutex) = 0;
  bool frozen GUARDED_BY(mutex) = false;
  std::map<uint64_t, uint64_t> grants GUARDED_BY(mutex);  // session -> version
  // A session that is about to end may have a map with a hole where there are pages: a change waits for its end.
  bool map_in_doubt GUARDED_BY(mutex) = false;
  std::map<uint64_t, Opener> opens GUARDED_BY(mutex);
  // Changes that wait until no kernel has pages, by their numbers: see page_leases.cc.
  uint64_t next_change GUARDED_BY(mutex) = 1;
  std::vector<uint64_t> waiting_changes GUARDED_BY(mutex);
  TaskCondition change_entered GUARDED_BY(mutex);  // or an opener is told to drop pages, or told_shrunk gets smaller
  // Sessions whose kernels are being told that the file is smaller now.
  std::vector<uint64_t> told_shrunk GUARDED_BY(mutex);
  bool unlinked GUARDED_BY(mutex) = false;  // an orphan in the store; to be released at the last close
  bool held GUARDED_BY(mutex) = false;      // somebody opened it by O_PATH while it had a name, or another had it open
  // Of ReplacedInodes, that have begun and not ended: every session may open it by its number, also as an orphan.
  uint64_t graces GUARDED_BY(mutex) = 0;
  bool releasing GUARDED_BY(mutex) = false;  // the reclaimer frees the orphan: nobody can open it any more

  void Load(const metadata::Attributes& attributes) REQUIRES(mutex);
  struct Times {
    Nanoseconds mtime;
    Nanoseconds ctime;
  };
  // After a change of the data; as metadata::Attributes::Rewritten.
  Times TimesAfterChange(Nanoseconds now) const REQUIRES(mutex);
  // The data has changed, and the store does not know the times yet.
  void Touch(Nanoseconds now) REQUIRES(mutex);
  // The store has these.
  void SetTimes(const Times& stored) REQUIRES(mutex);
  // What a getattr reports: the store's answer, with what runs ahead of it.
  void Merge(metadata::Attributes& attributes) REQUIRES(mutex);
  // The size or the extents have changed. kGrowth: only pages beyond the old size are new.
  enum class Change { kGrowth, kAny };
  void NewVersion(std::atomic<uint64_t>& counter, Change change) REQUIRES(mutex);
  // Takes [page, end) out of the extents, before the store frees them.
  void Remove(uint64_t page, uint64_t end) REQUIRES(mutex);
  // Forgets what it knows of the extents, when the store may know better.
  void ForgetExtents() REQUIRES(mutex);
  // A map for `session` that begins at `page`; version 0 when nothing may be granted now. Records the grant.
  Map Grant(uint64_t session, uint64_t page, std::atomic<uint64_t>& counter) REQUIRES(mutex);
  // No map, and those that the session has are void when it hears of it.
  Map Withhold(std::atomic<uint64_t>& counter) REQUIRES(mutex);
  // The session has stopped using maps up to `version`.
  void Drop(uint64_t session, uint64_t version) REQUIRES(mutex);
  // Everything the session held. Returns true when that was its last opener.
  bool CloseAll(uint64_t session) REQUIRES(mutex);
};

}  // namespace termfs::fs::server
