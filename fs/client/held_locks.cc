// SPDX-License-Identifier: Apache-2.0
#include "fs/client/held_locks.h"

#include <algorithm>
#include <chrono>
#include <iterator>

namespace termfs::fs::client {

namespace {
constexpr std::chrono::seconds kLongestEnding{60};  // longer than a call to the server
}

uint64_t HeldLocks::Begin(const LockKey& key) {
  MutexLock lock(mutex_);
  const auto deadline = std::chrono::steady_clock::now() + kLongestEnding;
  while (ending_.contains(key) && ended_.WaitUntil(mutex_, deadline)) {
  }
  entries_[key].asking.insert(notes_);
  return notes_;
}

void HeldLocks::End(const LockKey& key, uint64_t since) {
  MutexLock lock(mutex_);
  const auto entry = entries_.find(key);
  Leave(entry->second, since);
  if (entry->second.asking.empty() && entry->second.ranges.empty() && !entry->second.doubt) {
    entries_.erase(entry);
  }
}

uint64_t HeldLocks::Renew(const LockKey& key, uint64_t since, uint64_t then) {
  MutexLock lock(mutex_);
  Entry& entry = entries_[key];
  entry.asking.insert(then);
  Leave(entry, since);
  return then;
}

void HeldLocks::Leave(Entry& entry, uint64_t since) {
  const uint64_t oldest = *entry.asking.begin();
  entry.asking.erase(entry.asking.find(since));
  if (entry.asking.empty()) {
    entry.recent.clear();
  } else if (*entry.asking.begin() != oldest) {
    std::erase_if(entry.recent, [&](const auto& known) { return known.second.noted <= *entry.asking.begin(); });
  }
}

uint64_t HeldLocks::notes() {
  MutexLock lock(mutex_);
  return notes_;
}

size_t HeldLocks::recent() {
  MutexLock lock(mutex_);
  size_t all = 0;
  for (const auto& [key, entry] : entries_) {
    all += entry.recent.size();
  }
  return all;
}

std::vector<std::pair<uint64_t, uint64_t>> HeldLocks::Decide(Entry& entry, const LockRange& range,
                                                             const Change& change) {
  std::vector<std::pair<uint64_t, uint64_t>> decided;
  uint64_t next = range.start;
  auto known = entry.recent.upper_bound(range.start);
  if (known != entry.recent.begin() && std::prev(known)->second.end >= range.start) {
    --known;
  }
  while (known != entry.recent.end() && known->first <= range.end) {
    const auto [start, other] = *known;
    if (other.number < change.number) {
      known = entry.recent.erase(known);
      if (start < range.start) {
        entry.recent[start] = {range.start - 1, other.number, other.noted};
      }
      if (other.end > range.end) {
        known = entry.recent.insert_or_assign(range.end + 1, other).first;
      }
      continue;
    }
    if (start > next) {
      decided.emplace_back(next, start - 1);
    }
    next = other.end + 1;
    ++known;
  }
  if (next <= range.end) {
    decided.emplace_back(next, range.end);
  }
  for (const auto& [start, end] : decided) {
    entry.recent[start] = {end, change.number, change.noted};
  }
  return decided;
}

void HeldLocks::Note(const LockKey& key, uint64_t handle, const LockRange& range, LockType type, uint64_t change) {
  MutexLock lock(mutex_);
  Entry& entry = entries_[key];
  entry.handle = type != LockType::kUnlock ? handle : entry.handle;
  // What a later change has decided stays.
  for (const auto& [start, end] : Decide(entry, range, {.number = change, .noted = ++notes_})) {
    entry.ranges.Set(start, end, type, range.pid);
  }
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
  if (entry->second.asking.empty()) {
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
    entry = entry->second.asking.empty() ? entries_.erase(entry) : std::next(entry);
  }
}

void HeldLocks::ForgetAll() {
  MutexLock lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    Clear(entry->second);
    entry = entry->second.asking.empty() ? entries_.erase(entry) : std::next(entry);
  }
}

}  // namespace termfs::fs::client
