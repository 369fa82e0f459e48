// SPDX-License-Identifier: Apache-2.0
#include "fs/client/write_history.h"

#include <algorithm>

namespace termfs::fs::client {

void WriteHistory::Wrote(uint64_t generation) {
  MutexLock lock(mutex_);
  ++written_;
  if (generation < lost_before_) {
    AddLoss();
  }
}

uint64_t WriteHistory::Mark() const {
  MutexLock lock(mutex_);
  return written_;
}

void WriteHistory::Synced(uint64_t mark) {
  MutexLock lock(mutex_);
  synced_ = std::max(synced_, mark);
}

void WriteHistory::Lose(uint64_t generation) {
  MutexLock lock(mutex_);
  lost_before_ = generation;
  if (written_ > synced_) {
    AddLoss();
  }
}

void WriteHistory::LoseOne() {
  MutexLock lock(mutex_);
  AddLoss();
}

void WriteHistory::AddLoss() {
  synced_ = written_;
  ++losses_;
  told_ = false;
}

uint32_t WriteHistory::Told() const {
  MutexLock lock(mutex_);
  return told_ ? losses_ : losses_ - 1;
}

bool WriteHistory::Tell(uint32_t& told) {
  MutexLock lock(mutex_);
  if (told == losses_) {
    return false;
  }
  told = losses_;
  told_ = true;
  return true;
}

bool WriteHistory::settled() const {
  MutexLock lock(mutex_);
  return told_ && written_ == synced_;
}

}  // namespace termfs::fs::client
