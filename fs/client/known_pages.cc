// SPDX-License-Identifier: Apache-2.0
#include "fs/client/known_pages.h"

#include <utility>

namespace termfs::fs::client {

KnownPages::Known& KnownPages::Of(uint64_t ino) {
  if (const auto found = recent_.find(ino); found != recent_.end()) {
    return found->second;
  }
  if (recent_.size() >= kMost) {
    earlier_ = std::exchange(recent_, {});
  }
  Known& known = recent_[ino];
  if (const auto found = earlier_.find(ino); found != earlier_.end()) {
    known = found->second;
    earlier_.erase(found);
  }
  return known;
}

bool KnownPages::Opened(uint64_t ino, int64_t ctime, uint64_t generation) {
  MutexLock lock(mutex_);
  Known& known = Of(ino);
  const bool same = known.generation == generation && known.ctime == ctime;
  known.generation = generation;
  known.ctime = ctime;
  return same;
}

void KnownPages::Dropped(uint64_t ino, TimePoint now) {
  MutexLock lock(mutex_);
  Known& known = Of(ino);
  known.generation = 0;
  known.drops = now - known.last_drop < kLately ? known.drops + 1 : 1;
  known.last_drop = now;
}

bool KnownPages::Contended(uint64_t ino, TimePoint now) {
  MutexLock lock(mutex_);
  for (const auto* known : {&recent_, &earlier_}) {
    if (const auto found = known->find(ino); found != known->end()) {
      return found->second.drops >= kOften && now - found->second.last_drop < kLately;
    }
  }
  return false;
}

}  // namespace termfs::fs::client
