// SPDX-License-Identifier: Apache-2.0
#include "fs/client/known_names.h"

#include <algorithm>
#include <functional>
#include <iterator>

namespace termfs::fs::client {

namespace {
size_t HashOf(std::string_view name) { return std::hash<std::string_view>()(name); }
}  // namespace

void KnownNames::Made(uint64_t directory, BootTime end) {
  MutexLock lock(mutex_);
  if (directories_.size() >= kMostDirectories) {
    EraseEnded(Clock::System().Now());
    if (directories_.size() >= kMostDirectories) {
      Erase(directories_.begin());
    }
  }
  if (const auto known = directories_.find(directory); known != directories_.end()) {
    Erase(known);
  }
  directories_[directory].end = end;
}

void KnownNames::Renewed(uint64_t directory, BootTime end) {
  MutexLock lock(mutex_);
  const auto known = directories_.find(directory);
  if (known != directories_.end() && Clock::System().Now() < known->second.end) {
    known->second.end = std::max(known->second.end, end);
  }
}

void KnownNames::WillAdd(uint64_t directory, std::string_view name) {
  MutexLock lock(mutex_);
  if (const auto known = directories_.find(directory); known != directories_.end()) {
    Add(known, name);
  }
}

bool KnownNames::Lacks(uint64_t directory, std::string_view name) {
  MutexLock lock(mutex_);
  const auto known = directories_.find(directory);
  if (known == directories_.end()) {
    return false;
  }
  if (Clock::System().Now() >= known->second.end) {
    Erase(known);
    return false;
  }
  return Add(known, name);
}

void KnownNames::Forget(uint64_t directory) {
  MutexLock lock(mutex_);
  if (const auto known = directories_.find(directory); known != directories_.end()) {
    Erase(known);
  }
}

void KnownNames::ForgetAll() {
  MutexLock lock(mutex_);
  directories_.clear();
  names_ = 0;
}

bool KnownNames::Add(Directories::iterator directory, std::string_view name) {
  const bool is_new = directory->second.names.insert(HashOf(name)).second;
  if (is_new && ++names_ > kMostNames) {
    Erase(directory);
  }
  return is_new;
}

void KnownNames::Erase(Directories::iterator directory) {
  names_ -= directory->second.names.size();
  directories_.erase(directory);
}

void KnownNames::EraseEnded(BootTime now) {
  for (auto at = directories_.begin(); at != directories_.end();) {
    const auto next = std::next(at);
    if (at->second.end <= now) {
      Erase(at);
    }
    at = next;
  }
}

}  // namespace termfs::fs::client
