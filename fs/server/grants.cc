// SPDX-License-Identifier: Apache-2.0
#include "fs/server/grants.h"

#include <xxhash.h>

#include "base/check.h"

namespace termfs::fs::server {

namespace {
constexpr size_t kSweep = 4;  // taken out with each Add, so that the table shrinks while it is used
constexpr size_t kDrop = 8192;
}  // namespace

GrantKey GrantKey::Entry(uint64_t parent, std::string_view name) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(name.data(), name.size(), parent);
  return {hash.high64 | 1, hash.low64};  // never that of attributes
}

GrantTable::Index::iterator GrantTable::Find(const GrantKey& key, uint64_t session) {
  const auto [begin, end] = index_.equal_range(key);
  for (auto at = begin; at != end; ++at) {
    if (at->second->session == session) {
      return at;
    }
  }
  return index_.end();
}

void GrantTable::TakeOutEnded(BootTime now, size_t most) {
  for (size_t i = 0; i < most && !order_.empty() && order_.front().until <= now; ++i) {
    const auto found = Find(order_.front().key, order_.front().session);
    TERMFS_CHECK(found != index_.end());
    index_.erase(found);
    order_.pop_front();
  }
}

bool GrantTable::Add(const GrantKey& key, uint64_t session) { return AddUpTo(capacity_, key, session); }

void GrantTable::AddAlways(const GrantKey& key, uint64_t session) { AddUpTo(SIZE_MAX, key, session); }

bool GrantTable::AddUpTo(size_t capacity, const GrantKey& key, uint64_t session) {
  MutexLock lock(mutex_);
  const BootTime now = clock_.Now();  // with the lock, so that the order is that of the ends
  if (const auto found = Find(key, session); found != index_.end()) {
    const auto grant = found->second;
    grant->until = now + lasting_;
    grant->number = next_number_++;
    order_.splice(order_.end(), order_, grant);
    return true;
  }
  TakeOutEnded(now, kSweep);
  if (order_.size() >= capacity) {
    return false;
  }
  order_.push_back({.key = key, .session = session, .until = now + lasting_, .number = next_number_++});
  index_.emplace(key, std::prev(order_.end()));
  return true;
}

void GrantTable::FindHolders(const GrantKey& key, uint64_t keep, std::vector<Holder>& holders) {
  changes_.fetch_add(1, std::memory_order_seq_cst);
  MutexLock lock(mutex_);
  if (order_.empty()) {
    return;
  }
  const auto [begin, end] = index_.equal_range(key);
  for (auto at = begin; at != end; ++at) {
    if (at->second->session != keep && at->second->until > clock_.Now()) {
      holders.push_back(*at->second);
    }
  }
}

void GrantTable::Remove(const std::vector<Holder>& holders) {
  MutexLock lock(mutex_);
  for (const Holder& holder : holders) {
    const auto found = Find(holder.key, holder.session);
    if (found != index_.end() && found->second->number == holder.number) {
      order_.erase(found->second);
      index_.erase(found);
    }
  }
}

bool GrantTable::LastsAny(const std::vector<Holder>& holders) {
  MutexLock lock(mutex_);
  const BootTime now = clock_.Now();
  for (const Holder& holder : holders) {
    if (holder.until > now && Find(holder.key, holder.session) != index_.end()) {
      return true;
    }
  }
  return false;
}

void GrantTable::RemoveSession(uint64_t session) {
  MutexLock lock(mutex_);
  for (auto at = index_.begin(); at != index_.end();) {
    if (at->second->session == session) {
      order_.erase(at->second);
      at = index_.erase(at);
    } else {
      ++at;
    }
  }
}

void GrantTable::DropEnded() {
  MutexLock lock(mutex_);
  TakeOutEnded(clock_.Now(), kDrop);
}

size_t GrantTable::size() const {
  MutexLock lock(mutex_);
  return order_.size();
}

}  // namespace termfs::fs::server
