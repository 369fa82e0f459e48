// SPDX-License-Identifier: Apache-2.0
//
// GrantTable: which sessions' kernels may be using the attributes of which inodes, and which directory entries (names
// that are not there included), and until when. See "Leases for what the kernel caches".
//
// Who reads to answer:   Add first, read then. Who changes something: commit first, Holders then. In either order the
// answer is of the new state, or the change finds the holder. What could only be added after it was read (an inode that
// a name led to) is read again when changes() is another number than before.
//
// A grant ends at its time, when it is removed, or by the next Add of the same session, which is a new grant. The
// oldest come first in the order of their ends, since all last equally long; so those that have ended are taken out as
// others come. Nothing is kept of what nobody holds.
//
// Thread-safety: any thread.
#pragma once

#include <atomic>
#include <compare>
#include <list>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"

namespace termfs::fs::server {

struct GrantKey {
  uint64_t high = 0;
  uint64_t low = 0;
  friend auto operator<=>(const GrantKey&, const GrantKey&) = default;
  struct Hash {
    size_t operator()(const GrantKey& key) const { return (key.high ^ key.low) * 0x9E3779B97F4A7C15U; }
  };

  static GrantKey Attributes(uint64_t ino) { return {0, ino}; }
  // By a hash of 128 bits; what is held is not known by name.
  static GrantKey Entry(uint64_t parent, std::string_view name);
};

class GrantTable {
 public:
  struct Holder {
    GrantKey key;
    uint64_t session = 0;
    BootTime until;
    uint64_t number = 0;  // of the grant
  };

  // `lasting`: of a grant, from Add on; so that is longer than what the client is told. At most `capacity` grants.
  GrantTable(const Clock& clock, Nanoseconds lasting, size_t capacity)
      : clock_(clock), lasting_(lasting), capacity_(capacity) {}

  // False: the table is full of grants that last. They end soon; to call the oldest back would cost a call for each
  // look-up of a client that walks through more than fits.
  bool Add(const GrantKey& key, uint64_t session) EXCLUDES(mutex_);
  // Also when it is full: for what a kernel has already.
  void AddAlways(const GrantKey& key, uint64_t session) EXCLUDES(mutex_);
  // Appends those who hold the key now, but for `keep`. Counts as a change.
  void FindHolders(const GrantKey& key, uint64_t keep, std::vector<Holder>& holders) EXCLUDES(mutex_);
  // The holders that were found do not hold it any more, unless they were granted it anew since.
  void Remove(const std::vector<Holder>& holders) EXCLUDES(mutex_);
  // Whether one of them has not ended, nor was removed.
  bool LastsAny(const std::vector<Holder>& holders) EXCLUDES(mutex_);
  void RemoveSession(uint64_t session) EXCLUDES(mutex_);
  // Takes out grants that have ended, when nothing else does: no more than it can without holding up others.
  void DropEnded() EXCLUDES(mutex_);
  size_t size() const EXCLUDES(mutex_);

  // Raised before holders are looked for.
  uint64_t changes() const { return changes_.load(std::memory_order_seq_cst); }
  BootTime Now() const { return clock_.Now(); }

 private:
  using Order = std::list<Holder>;
  using Index = std::unordered_multimap<GrantKey, Order::iterator, GrantKey::Hash>;
  bool AddUpTo(size_t capacity, const GrantKey& key, uint64_t session) EXCLUDES(mutex_);
  Index::iterator Find(const GrantKey& key, uint64_t session) REQUIRES(mutex_);
  void TakeOutEnded(BootTime now, size_t most) REQUIRES(mutex_);

  const Clock& clock_;
  const Nanoseconds lasting_;
  const size_t capacity_;
  std::atomic<uint64_t> changes_{0};
  mutable Mutex mutex_;
  uint64_t next_number_ GUARDED_BY(mutex_) = 1;
  Order order_ GUARDED_BY(mutex_);  // by their ends
  Index index_ GUARDED_BY(mutex_);
};

}  // namespace termfs::fs::server
