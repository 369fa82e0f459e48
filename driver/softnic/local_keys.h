// SPDX-License-Identifier: Apache-2.0
//
// LocalKeys: the local keys that a queue pair has met, looked up in the registry once.
//
// Thread-safety: its queue pair's thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "driver/nic.h"
#include "driver/softnic/registry.h"

namespace termfs::driver::softnic {

class LocalKeys {
 public:
  LocalKeys(std::shared_ptr<Registry> registry, uint32_t domain) : registry_(std::move(registry)), domain_(domain) {}

  // Whether the key gives the buffer, to be written to where `write` says so.
  bool Cover(const ScatterGather& local, bool write) {
    if (local.length == 0) {
      return true;
    }
    Entry& entry = entries_[local.lkey.value % entries_.size()];
    if (entry.lkey != local.lkey.value || epoch_ != registry_->local_epoch()) [[unlikely]] {
      if (local.lkey.value == 0 || !Find(local.lkey, &entry)) {
        return false;
      }
    }
    const auto offset = reinterpret_cast<uintptr_t>(local.addr) - reinterpret_cast<uintptr_t>(entry.base);
    return offset <= entry.size && local.length <= entry.size - offset && (!write || entry.local_write);
  }

 private:
  struct Entry {
    uint32_t lkey = 0;
    bool local_write = false;
    const std::byte* base = nullptr;
    size_t size = 0;
  };
  bool Find(LKey lkey, Entry* entry);

  const std::shared_ptr<Registry> registry_;
  const uint32_t domain_;
  std::array<Entry, 16> entries_{};
  uint64_t epoch_ = 0;
};

}  // namespace termfs::driver::softnic
