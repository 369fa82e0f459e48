// SPDX-License-Identifier: Apache-2.0
//
// KeyMap: which of the device's memory regions stand for a local key of the software RNIC.
//
// Thread-safety: any thread.
#pragma once

#include <map>
#include <unordered_map>

#include "base/mutex.h"
#include "driver/device.h"

namespace termfs::driver::paired {

class KeyMap final : public LocalKeyMap {
 public:
  // The device knows [data, data + size) of the region behind `key` by `device_key`.
  void Add(LKey key, std::byte* data, size_t size, LKey device_key) EXCLUDES(mutex_);
  void Remove(LKey key, std::byte* data) EXCLUDES(mutex_);
  size_t Translate(const ScatterGather& local, std::span<ScatterGather> parts) const override EXCLUDES(mutex_);

 private:
  struct Range {
    size_t size;
    LKey key;
  };
  using Ranges = std::map<std::byte*, Range>;

  mutable Mutex mutex_;
  std::unordered_map<uint32_t, Ranges> keys_ GUARDED_BY(mutex_);
};

}  // namespace termfs::driver::paired
