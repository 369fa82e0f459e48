// SPDX-License-Identifier: Apache-2.0
#include "driver/paired/key_map.h"

#include <algorithm>
#include <iterator>

namespace termfs::driver::paired {

void KeyMap::Add(LKey key, std::byte* data, size_t size, LKey device_key) {
  MutexLock lock(mutex_);
  keys_[key.value][data] = {size, device_key};
}

void KeyMap::Remove(LKey key, std::byte* data) {
  MutexLock lock(mutex_);
  const auto found = keys_.find(key.value);
  if (found != keys_.end() && found->second.erase(data) != 0 && found->second.empty()) {
    keys_.erase(found);
  }
}

size_t KeyMap::Translate(const ScatterGather& local, std::span<ScatterGather> parts) const {
  MutexLock lock(mutex_);
  const auto found = keys_.find(local.lkey.value);
  if (found == keys_.end()) {
    return 0;
  }
  auto* at = static_cast<std::byte*>(local.addr);
  uint32_t left = local.length;
  size_t count = 0;
  do {
    const auto after = found->second.upper_bound(at);
    if (after == found->second.begin() || count == parts.size()) {
      return 0;
    }
    const auto& [start, range] = *std::prev(after);
    const auto offset = static_cast<size_t>(at - start);
    if (offset >= range.size) {
      return 0;
    }
    const auto length = static_cast<uint32_t>(std::min<size_t>(left, range.size - offset));
    parts[count++] = {.addr = at, .length = length, .lkey = range.key};
    at += length;
    left -= length;
  } while (left != 0);
  return count;
}

}  // namespace termfs::driver::paired
