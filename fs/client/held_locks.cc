// SPDX-License-Identifier: Apache-2.0
#include "fs/client/held_locks.h"

#include <algorithm>
#include <chrono>

namespace termfs::fs::client {

namespace {
constexpr std::chrono::seconds kLongestEnding{60};  // longer than a call to the server
}

void HeldLocks::Begin(const LockKey& key) {
  MutexLock lock(mutex_);
  const auto deadline = std::chrono::steady_clock::now() + kLongestEnding;
  while (ending_.contains(key) && ended_.WaitUntil(mutex_, deadline)) {
  }
  entries_[key].asking++;
}

void HeldLocks::End(const LockKey& key) {
  MutexLock lock(mutex_);
  const auto entry = entries_.find(key);
  if (--entry->second.asking > 0) {
    return;
  }
  entry->second.recent.clear();
  if (entry->second.ranges.empty() && !entry->second.doubt) {
    entries_.erase(entry);
  }
}

void HeldLocks::Note(const LockKey& key, uint64_t handle, const LockRange& range, LockType type, uint64_t change) {
  MutexLock lock(mutex_);
  Entry& entry = entries_[key];
  entry.handle = type != LockType::kUnlock ? handle : entry.handle;
  // What a later change has decided stays: only the bytes between such are set.
  uint64_t next = range.start;
  std::sort(entry.recent.begin(), entry.recent.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
  for (const Change& later : entry.recent) {
    if (later.number < change || later.end < next || later.start > range.end) {
      continue;
    }
    if (later.start > next) {
      entry.ranges.Set(next, later.start - 1, type, range.pid);
    }
    next = later.end + 1;
  }
  if (next <= range.end) {
    entry.ranges.Set(next, range.end, type, range.pid);
  }
  std::erase_if(entry.recent, [&](const Change& earlier) {
    return earlier.number < change && earlier.start >= range.start && earlier.end <= range.end;
  });
  entry.recent.push_back({range.start, range.end, change});
  if (type == LockType::kUnlock && range.start == 0 && range.end == kLastLockByte) {
    entry.doubt = false;
  }
}

void HeldLocks::Doubt(const LockKey& key, uint64_t handle, LockType type) {
  MutexLock lock(mutex_);
  Entry& entry = entries_[key];
  // What an unlock may have left ends with the handle that got it.
  entry.handle = type != LockType::kUnlock || entry.handle == 0 ? handle : entry.handle;
  entry.doubt = true;
}

bool HeldLocks::Any(const LockKey& key) {
  MutexLock lock(mutex_);
  return entries_.contains(key);
}

bool HeldLocks::EndWith(const LockKey& key, uint64_t handle) {
  MutexLock lock(mutex_);
  const auto entry = entries_.find(key);
  if (entry == entries_.end() || entry->second.handle != handle) {
    return false;
  }
  Clear(entry->second);
  if (entry->second.asking == 0) {
    entries_.erase(entry);
  }
  ending_.insert(key);
  return true;
}

void HeldLocks::EndedWith(const LockKey& key) {
  MutexLock lock(mutex_);
  ending_.erase(key);
  ended_.NotifyAll();
}

std::vector<HeldLocks::Held> HeldLocks::All() {
  std::vector<Held> all;
  MutexLock lock(mutex_);
  for (const auto& [key, entry] : entries_) {
    for (const LockRange& range : entry.ranges.all()) {
      all.push_back({key, range});
    }
  }
  return all;
}

void HeldLocks::Clear(Entry& entry) {
  entry.ranges = {};
  entry.doubt = false;
}

void HeldLocks::ForgetFile(uint64_t ino) {
  MutexLock lock(mutex_);
  for (auto entry = entries_.lower_bound({.ino = ino}); entry != entries_.end() && entry->first.ino == ino;) {
    Clear(entry->second);
    entry = entry->second.asking == 0 ? entries_.erase(entry) : std::next(entry);
  }
}

void HeldLocks::ForgetAll() {
  MutexLock lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    Clear(entry->second);
    entry = entry->second.asking == 0 ? entries_.erase(entry) : std::next(entry);
  }
}

}  // namespace termfs::fs::client
