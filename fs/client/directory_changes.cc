// SPDX-License-Identifier: Apache-2.0
#include "fs/client/directory_changes.h"

#include <algorithm>
#include <utility>

namespace termfs::fs::client {

DirectoryChanges::Change::Change(DirectoryChanges& changes, uint64_t directory)
    : changes_(changes), directory_(directory) {
  Slot& slot = changes_.SlotOf(directory_);
  MutexLock lock(slot.mutex);
  alone_ = slot.active++ == 0;
  number_ = ++slot.begun;
  slot.brought.reset();
}

DirectoryChanges::Change::~Change() {
  Slot& slot = changes_.SlotOf(directory_);
  const BootTime now = Clock::System().Now();
  MutexLock lock(slot.mutex);
  slot.active--;
  slot.last_end = std::max(slot.last_end, now);
  // Another one that was under way meanwhile may have been executed after what this one brought was read.
  if (alone_ && slot.begun == number_) {
    slot.brought = brought_;
  }
}

void DirectoryChanges::ForgetOthers(uint64_t directory) {
  for (Slot& slot : slots_) {
    if (&slot == &SlotOf(directory)) {
      continue;  // nothing else is remembered there: the change is newer
    }
    MutexLock lock(slot.mutex);
    slot.begun++;
    slot.brought.reset();
  }
}

bool DirectoryChanges::Settled(uint64_t directory, BootTime since) {
  Slot& slot = SlotOf(directory);
  MutexLock lock(slot.mutex);
  return slot.active == 0 && slot.last_end < since;
}

std::optional<DirectoryChanges::Brought> DirectoryChanges::Take(uint64_t directory) {
  Slot& slot = SlotOf(directory);
  MutexLock lock(slot.mutex);
  if (!slot.brought.has_value() || slot.brought->attributes.ino != directory) {
    return std::nullopt;
  }
  return std::exchange(slot.brought, std::nullopt);
}

}  // namespace termfs::fs::client
