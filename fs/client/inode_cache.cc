// SPDX-License-Identifier: Apache-2.0
#include "fs/client/inode_cache.h"

#include <sched.h>

#include <algorithm>

namespace termfs::fs::client {

namespace {

constexpr size_t kMaxSegments = size_t{1} << 17;  // kept per inode: 3 MiB
constexpr int kSpins = 200;                       // then the holder has probably lost its CPU

}  // namespace

void SpinLock::Lock() {
  while (taken_.exchange(true, std::memory_order_acquire)) {
    for (int spin = 0; taken_.load(std::memory_order_relaxed); ++spin) {
      if (spin >= kSpins) {
        sched_yield();
        spin = 0;
      }
    }
  }
}

bool InodeCache::Look(uint64_t offset, uint64_t length, Plan& plan) const {
  SpinHold hold(lock_);
  if (version_ == 0) {
    return false;
  }
  plan.epoch = epoch_.load(std::memory_order_relaxed);
  plan.length = offset < size_ ? std::min(length, size_ - offset) : 0;
  plan.count = 0;
  if (changes_ != 0 && plan.length < length) {
    return false;
  }
  if (plan.length == 0) {
    return true;
  }
  uint64_t page = offset >> kPageBits;
  const uint64_t end = PagesFor(offset + plan.length);
  const auto all = extents_.segments();
  for (ptrdiff_t i = extents_.Find(page); page < end; ++i) {
    if (i < 0 || i >= std::ssize(all) || all[static_cast<size_t>(i)].file_page > page ||
        plan.count == Plan::kSegments) {
      return false;
    }
    const Segment& s = all[static_cast<size_t>(i)];
    if (changes_ != 0 && s.is_hole()) {
      return false;
    }
    const uint64_t last = std::min(end, s.end());
    plan.segments[plan.count++] = {page, last - page, s.region_of(page)};
    page = last;
  }
  return true;
}

void InodeCache::Install(const Map& map, uint64_t generation) {
  SpinHold hold(lock_);
  if (map.version == 0) {
    // Somebody else is changing the file. What this client has changed is in no map that it has, and none that is on
    // its way: the server spared it when it revoked them.
    if (generation == generation_ && map.base > void_up_to_) {
      Void(map.base);
    }
    return;
  }
  if (generation != generation_ || doubts_ != 0 || map.version <= void_up_to_ || map.version < version_) {
    return;
  }
  if (version_ < map.base || extents_.segments().size() > kMaxSegments) {
    extents_.Clear();
  }
  version_ = map.version;
  size_ = map.size;
  for (const Segment& s : map.segments) {
    extents_.Set(s);
  }
}

void InodeCache::Void(uint64_t version) {
  void_up_to_ = std::max(void_up_to_, version);
  if (version_ <= void_up_to_) {
    version_ = 0;
    size_ = 0;
    extents_.Clear();
  }
  epoch_.fetch_add(1, std::memory_order_release);
}

void InodeCache::BeginGeneration(uint64_t generation) {
  pages_.Drop();
  SpinHold hold(lock_);
  Void(version_);
  generation_ = generation;
}

void InodeCache::Revoke(uint64_t version) {
  SpinHold hold(lock_);
  Void(version);
}

uint64_t InodeCache::Drop() {
  SpinHold hold(lock_);
  const uint64_t dropped = version_;
  if (dropped != 0) {
    Void(dropped);
  }
  return dropped;
}

void InodeCache::BeginDoubt() {
  SpinHold hold(lock_);
  doubts_++;
  Void(version_);
}

void InodeCache::EndDoubt() {
  SpinHold hold(lock_);
  doubts_--;
}

uint64_t InodeCache::version() const {
  SpinHold hold(lock_);
  return version_;
}

uint64_t InodeCache::known_size() const {
  SpinHold hold(lock_);
  return version_ != 0 ? size_ : 0;
}

std::shared_ptr<InodeCache> InodeCacheTable::Take(uint64_t ino) {
  MutexLock lock(mutex_);
  Entry& entry = entries_[ino];
  if (entry.cache == nullptr) {
    auto kept = unsettled_.extract(ino);
    entry.cache =
        kept.empty() ? std::make_shared<InodeCache>() : std::make_shared<InodeCache>(std::move(kept.mapped()));
    entry.cache->BeginGeneration(generation_);
  }
  ++entry.users;
  return entry.cache;
}

InodeCacheTable::Entry* InodeCacheTable::Find(uint64_t ino, const std::shared_ptr<InodeCache>& cache) {
  const auto entry = entries_.find(ino);
  return entry == entries_.end() || entry->second.cache != cache ? nullptr : &entry->second;
}

void InodeCacheTable::Put(uint64_t ino, const std::shared_ptr<InodeCache>& cache) {
  MutexLock lock(mutex_);
  Entry* const entry = Find(ino, cache);
  if (entry != nullptr && --entry->users == 0) {
    Keep(ino, *entry->cache);
    entries_.erase(ino);
  }
}

void InodeCacheTable::Keep(uint64_t ino, const InodeCache& cache) {
  if (cache.writes_->settled()) {
    return;
  }
  if (unsettled_.size() >= kMostUnsettled) {
    unsettled_.erase(unsettled_.begin());
  }
  unsettled_[ino] = cache.writes_;
}

std::shared_ptr<InodeCache> InodeCacheTable::Find(uint64_t ino) {
  MutexLock lock(mutex_);
  const auto entry = entries_.find(ino);
  return entry == entries_.end() ? nullptr : entry->second.cache;
}

bool InodeCacheTable::Opened(uint64_t ino, const std::shared_ptr<InodeCache>& cache, uint64_t generation) {
  MutexLock lock(mutex_);
  Entry* const entry = Find(ino, cache);
  if (entry == nullptr || generation != generation_) {
    return false;
  }
  ++entry->open_files;
  return true;
}

InodeCacheTable::Closing InodeCacheTable::Closed(uint64_t ino, const std::shared_ptr<InodeCache>& cache) {
  MutexLock lock(mutex_);
  Entry* const entry = Find(ino, cache);
  if (entry == nullptr) {
    return {};
  }
  return {.counted = true, .last = --entry->open_files == 0, .generation = generation_};
}

std::vector<InodeCacheTable::OpenInode> InodeCacheTable::BeginGeneration(uint64_t generation) {
  MutexLock lock(mutex_);
  generation_ = generation;
  std::vector<OpenInode> open;
  for (const auto& [ino, entry] : entries_) {
    entry.cache->BeginGeneration(generation);
    if (entry.open_files > 0) {
      open.push_back({.ino = ino, .open_files = entry.open_files});
    }
  }
  return open;
}

uint64_t InodeCacheTable::Lose(uint64_t ino) {
  MutexLock lock(mutex_);
  const auto entry = entries_.find(ino);
  if (entry == entries_.end()) {
    return 0;
  }
  const uint64_t files = entry->second.open_files;
  entry->second.cache->Lose();
  Keep(ino, *entry->second.cache);
  entries_.erase(entry);
  return files;
}

void InodeCacheTable::LoseWrites(uint64_t generation) {
  MutexLock lock(mutex_);
  for (const auto& [ino, entry] : entries_) {
    entry.cache->writes_->Lose(generation);
  }
  for (const auto& [ino, writes] : unsettled_) {
    writes->Lose(generation);
  }
}

}  // namespace termfs::fs::client
