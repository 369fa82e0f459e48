// SPDX-License-Identifier: Apache-2.0
#include "fs/server/name_locks.h"

#include <algorithm>

#include "base/check.h"

namespace termfs::fs::server {

using std::chrono::steady_clock;

NameLocks::Hold::Hold(NameLocks& locks, std::initializer_list<GrantKey> names) : locks_(locks) {
  TERMFS_CHECK(names.size() <= kMostNames);
  std::array<GrantKey, kMostNames> order;
  const auto end = std::copy(names.begin(), names.end(), order.begin());
  std::sort(order.begin(), end);  // everybody takes them in this order
  const Deadline deadline = steady_clock::now() + locks.patience_;
  std::for_each(order.begin(), std::unique(order.begin(), end), [&](const GrantKey& name) {
    if (locks.Take(name, deadline)) {
      held_[count_++] = name;
    }
  });
}

NameLocks::Hold::~Hold() {
  for (size_t i = 0; i < count_; ++i) {
    locks_.Give(held_[i]);
  }
}

bool NameLocks::Take(const GrantKey& name, Deadline deadline) {
  Shard& shard = ShardOf(name);
  MutexLock lock(shard.mutex);
  while (!shard.held.insert(name).second) {
    if (!shard.freed.WaitUntil(shard.mutex, deadline) && steady_clock::now() >= deadline) {
      return false;
    }
  }
  return true;
}

void NameLocks::Give(const GrantKey& name) {
  Shard& shard = ShardOf(name);
  MutexLock lock(shard.mutex);
  shard.held.erase(name);
  shard.freed.NotifyAll();
}

}  // namespace termfs::fs::server
