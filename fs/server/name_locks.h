// SPDX-License-Identifier: Apache-2.0
//
// NameLocks: orders the changes of one name. Whoever makes, removes or moves a name holds its lock from before the
// change is committed until the kernels that knew the name have dropped it. So no call returns while its own kernel
// still shows what another call has changed before, and recalls come in the order of what they are about.
//
// A kernel that is to drop a name may wait for a call which waits here. So nobody waits longer than `patience`; then
// it goes on without the lock. See "Leases for what the kernel caches".
//
// Thread-safety: Hold inside a task; it may end on any thread.
#pragma once

#include <array>
#include <chrono>
#include <initializer_list>
#include <unordered_set>

#include "base/mutex.h"
#include "fs/server/grants.h"
#include "fs/server/task_condition.h"

namespace termfs::fs::server {

class NameLocks {
 public:
  static constexpr std::chrono::milliseconds kPatience{500};
  static constexpr size_t kMostNames = 2;

  explicit NameLocks(std::chrono::milliseconds patience = kPatience) : patience_(patience) {}

  class Hold {
   public:
    // Waits for the locks of up to kMostNames names (GrantKey::Entry), and holds those that it got in time.
    Hold(NameLocks& locks, std::initializer_list<GrantKey> names);
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    size_t size() const { return count_; }

   private:
    NameLocks& locks_;
    std::array<GrantKey, kMostNames> held_;
    size_t count_ = 0;
  };

 private:
  struct Shard {
    Mutex mutex;
    std::unordered_set<GrantKey, GrantKey::Hash> held GUARDED_BY(mutex);
    TaskCondition freed GUARDED_BY(mutex);
  };
  Shard& ShardOf(const GrantKey& name) { return shards_[name.low % shards_.size()]; }
  bool Take(const GrantKey& name, Deadline deadline);
  void Give(const GrantKey& name);

  const std::chrono::milliseconds patience_;
  std::array<Shard, 64> shards_;
};

}  // namespace termfs::fs::server
