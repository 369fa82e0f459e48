// SPDX-License-Identifier: Apache-2.0
#include "mount/known_directories.h"

#include <sys/stat.h>

#include <algorithm>

namespace termfs::mount {

namespace {

fs::Attributes AsRemoved(fs::Attributes directory) {
  directory.nlink = 0;
  directory.size = directory.blocks = 0;
  return directory;
}

}  // namespace

void KnownDirectories::LookedUp(const fs::Attributes& directory) {
  MutexLock lock(mutex_);
  Directory& known = directories_[directory.ino];
  known.attributes = directory;
  ++known.lookups;
}

void KnownDirectories::Forget(uint64_t ino, uint64_t count) {
  MutexLock lock(mutex_);
  const auto known = directories_.find(ino);
  if (known == directories_.end()) {
    return;
  }
  known->second.lookups -= std::min(known->second.lookups, count);
  if (known->second.lookups == 0) {
    directories_.erase(known);
  }
}

void KnownDirectories::Seen(const fs::Attributes& attributes) {
  if (!S_ISDIR(attributes.mode)) {
    return;
  }
  MutexLock lock(mutex_);
  if (const auto known = directories_.find(attributes.ino); known != directories_.end()) {
    known->second.attributes = attributes;
  }
}

std::optional<fs::Attributes> KnownDirectories::Removed(uint64_t ino) const {
  MutexLock lock(mutex_);
  const auto known = directories_.find(ino);
  return known == directories_.end() ? std::nullopt : std::optional(AsRemoved(known->second.attributes));
}

std::optional<fs::Attributes> KnownDirectories::SetRemoved(uint64_t ino, const fs::client::SetAttributes& what,
                                                           int64_t now) {
  MutexLock lock(mutex_);
  const auto known = directories_.find(ino);
  if (known == directories_.end()) {
    return std::nullopt;
  }
  fs::Attributes& a = known->second.attributes;
  a.mode = (a.mode & S_IFMT) | (what.mode.value_or(a.mode) & 07777);
  a.uid = what.uid.value_or(a.uid);
  a.gid = what.gid.value_or(a.gid);
  a.atime = what.atime_now ? now : what.atime.value_or(a.atime);
  a.mtime = what.mtime_now ? now : what.mtime.value_or(a.mtime);
  a.ctime = std::max(a.ctime, now);
  return AsRemoved(a);
}

}  // namespace termfs::mount
