// SPDX-License-Identifier: Apache-2.0
//
// DiskReserve: a file of allocated blocks that keeps room on a disk for what must go through after others have filled
// it. It gives up its blocks in small portions, each when it is needed, so that others can take little of them, and is
// filled again when there is plenty of room.
//
// Thread-safety: any thread.
// Errors:        none; what cannot be had is not held. A file system without fallocate holds nothing.
// Durability:    none needed: a file that a crash took back is filled again.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "base/mutex.h"
#include "base/unique_fd.h"

namespace termfs::metadata {

class DiskReserve {
 public:
  // Takes over what the file `path` holds. `bytes`: what it holds when it is full; 0: there is no reserve, and no file.
  DiskReserve(std::string path, uint64_t bytes);
  DiskReserve(const DiskReserve&) = delete;
  DiskReserve& operator=(const DiskReserve&) = delete;

  uint64_t full() const { return full_; }                                  // bytes
  uint64_t held() const { return held_.load(std::memory_order_relaxed); }  // bytes

  // Frees `bytes` of its blocks, or those that it has. False: it has none.
  bool GiveUp(uint64_t bytes) EXCLUDES(mutex_);
  // Allocates what is missing. REQUIRES: the disk has it, with room to spare.
  void Fill() EXCLUDES(mutex_);

 private:
  void Measure() REQUIRES(mutex_);

  const std::string path_;
  const uint64_t full_;
  Mutex mutex_;
  UniqueFd fd_ GUARDED_BY(mutex_);
  bool unsupported_ GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::time_point next_try_ GUARDED_BY(mutex_){};  // to fill it, after one that failed
  std::atomic<uint64_t> held_{0};
};

}  // namespace termfs::metadata
