// SPDX-License-Identifier: Apache-2.0
#include "fs/server/contended_directories.h"

#include <algorithm>

namespace termfs::fs::server {

void ContendedDirectories::NoteRecall(uint64_t directory, uint64_t session, BootTime begin, BootTime end) {
  MutexLock lock(mutex_);
  Slot& slot = slots_[IndexOf(directory)];
  if (slot.directory != directory) {
    slot = {.directory = directory, .writer = session, .since = begin};
  } else if (end - slot.since > kWindow && slot.until <= end) {
    slot = {.directory = directory, .writer = session, .since = begin, .until = slot.until, .hold = slot.hold};
  }
  if (slot.writer != session) {
    slot.writer = 0;
  }
  ++slot.recalls;
  slot.waited += end - begin;
  if (slot.until <= end && slot.recalls >= kLeastRecalls && slot.waited * kShare >= end - slot.since) {
    slot.hold = end - slot.until < kLongestHold ? std::clamp(2 * slot.hold, kHold, kLongestHold) : kHold;
    slot.until = end + slot.hold;
    latest_.store(std::max(latest_.load(std::memory_order_relaxed), slot.until.since_boot.count()),
                  std::memory_order_relaxed);
  }
}

bool ContendedDirectories::IsContended(uint64_t directory, uint64_t session, BootTime now) const {
  if (now.since_boot.count() >= latest_.load(std::memory_order_relaxed)) {
    return false;
  }
  MutexLock lock(mutex_);
  const Slot& slot = slots_[IndexOf(directory)];
  return slot.directory == directory && slot.until > now && slot.writer != session;
}

}  // namespace termfs::fs::server
