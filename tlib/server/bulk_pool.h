// SPDX-License-Identifier: Apache-2.0
//
// BulkPool: a worker's registered buffers for bytes that come from clients, or go to them from unregistered memory.
//
// Thread-safety: tasks of its worker.
// Ownership:     Buffer gives its memory back when it is destroyed, before the pool.
// Waiting:       Take waits, first come first served. A task holds at most one buffer, and takes it before it waits for
//                anything else that others hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/result.h"
#include "driver/nic.h"
#include "tlib/server/task.h"

namespace termfs::tlib::server {

class BulkPool {
 public:
  static constexpr uint32_t kBufferBytes = 256 << 10;
  static constexpr uint32_t kBuffers = 16;

  class Buffer {
   public:
    explicit Buffer(BulkPool& pool) : pool_(pool), data_(pool.Take()) {}
    ~Buffer() { pool_.Give(data_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    std::byte* data() const { return data_; }
    driver::LKey lkey() const { return pool_.region_->lkey(); }

   private:
    BulkPool& pool_;
    std::byte* const data_;
  };

  static Result<std::unique_ptr<BulkPool>> Create(driver::ProtectionDomain& domain);
  BulkPool(const BulkPool&) = delete;
  BulkPool& operator=(const BulkPool&) = delete;

 private:
  struct FreeMemory {
    void operator()(std::byte* memory) const;
  };

  BulkPool() = default;
  std::byte* Take();
  void Give(std::byte* data);

  std::unique_ptr<std::byte, FreeMemory> memory_;
  std::unique_ptr<driver::MemoryRegion> region_;
  std::vector<std::byte*> free_;
  std::deque<Task*> waiting_;
};

}  // namespace termfs::tlib::server
