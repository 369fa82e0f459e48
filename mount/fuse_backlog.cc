// SPDX-License-Identifier: Apache-2.0
#include "mount/fuse_backlog.h"

#include <algorithm>

namespace termfs::mount {

bool FuseBacklog::HasRoom(size_t bytes) {
  MutexLock lock(mutex_);
  return bytes_ + bytes <= kMaxBytes;
}

void FuseBacklog::Push(Item item) {
  MutexLock lock(mutex_);
  bytes_ += item.size;
  items_.push_back(std::move(item));
  count_.store(items_.size(), std::memory_order_release);
}

FuseBacklog::Item FuseBacklog::Remove(const std::deque<Item>::iterator& which) {
  Item item = std::move(*which);
  items_.erase(which);
  bytes_ -= item.size;
  count_.store(items_.size(), std::memory_order_release);
  return item;
}

std::optional<FuseBacklog::Item> FuseBacklog::Pop() {
  MutexLock lock(mutex_);
  if (items_.empty()) {
    return std::nullopt;
  }
  return Remove(items_.begin());
}

std::optional<FuseBacklog::Item> FuseBacklog::Take(const std::function<bool(const Item&)>& is_it) {
  MutexLock lock(mutex_);
  const auto found = std::find_if(items_.begin(), items_.end(), is_it);
  if (found == items_.end()) {
    return std::nullopt;
  }
  return Remove(found);
}

}  // namespace termfs::mount
