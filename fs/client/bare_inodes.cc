// SPDX-License-Identifier: Apache-2.0
#include "fs/client/bare_inodes.h"

#include <utility>

namespace termfs::fs::client {

void BareInodes::Seen(const Attributes& attributes, const LaneGrants& grants) {
  const uint64_t ino = attributes.ino;
  MutexLock lock(mutex_);
  const auto end = grants.AttributesEnd();  // a recall that this does not see is counted, and calls Forget, later
  if (!end.has_value() || changing_.contains(ino)) {
    return;
  }
  if (!attributes.no_xattrs) {
    return Erase(ino);
  }
  if (recent_.size() >= kMost && !recent_.contains(ino)) {
    earlier_ = std::exchange(recent_, {});
  }
  recent_[ino] = *end;
}

bool BareInodes::Contains(uint64_t ino) {
  const BootTime now = Clock::System().Now();
  MutexLock lock(mutex_);
  for (const auto* seen : {&recent_, &earlier_}) {
    if (const auto found = seen->find(ino); found != seen->end()) {
      return now < found->second;  // of two the recent one, which ends later
    }
  }
  return false;
}

void BareInodes::Erase(uint64_t ino) {
  recent_.erase(ino);
  earlier_.erase(ino);
}

void BareInodes::Forget(uint64_t ino) {
  MutexLock lock(mutex_);
  Erase(ino);
}

void BareInodes::ForgetAll() {
  MutexLock lock(mutex_);
  recent_.clear();
  earlier_.clear();
}

void BareInodes::BeginChange(uint64_t ino) {
  MutexLock lock(mutex_);
  changing_.insert(ino);
  Erase(ino);
}

void BareInodes::EndChange(uint64_t ino) {
  MutexLock lock(mutex_);
  if (const auto one = changing_.find(ino); one != changing_.end()) {
    changing_.erase(one);
  }
}

}  // namespace termfs::fs::client
