// SPDX-License-Identifier: Apache-2.0
//
// BulkPool: a worker's registered buffers for bytes that come from clients, or go to them from unregistered memory.
//
// Thread-safety: tasks of its worker.
// Ownership:     Buffer gives its memory back when it is destroyed, before the pool.
// Waiting:       Take waits, first come first served but for owners of tasks who have their share (fair_shares.h). A
// task
//                holds at most one buffer, and takes it before it waits for anything else that others hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/result.h"
#include "driver/nic.h"
#include "tlib/server/fair_shares.h"
#include "tlib/server/task.h"

namespace termfs::tlib::server {

class BulkPool {
 public:
  static constexpr uint32_t kBufferBytes = 256 << 10;
  static constexpr uint32_t kBuffers = 16;

  class Buffer {
   public:
    explicit Buffer(BulkPool& pool) : pool_(pool), owner_(Task::Current().owner()), data_(pool.Take(owner_)) {}
    ~Buffer() { pool_.Give(owner_, data_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    std::byte* data() const { return data_; }
    driver::LKey lkey() const { return pool_.region_->lkey(); }

   private:
    BulkPool& pool_;
    const uint64_t owner_;
    std::byte* const data_;
  };

  static Result<std::unique_ptr<BulkPool>> Create(driver::ProtectionDomain& domain);
  BulkPool(const BulkPool&) = delete;
  BulkPool& operator=(const BulkPool&) = delete;

 private:
  struct FreeMemory {
    void operator()(std::byte* memory) const;
  };

  struct Waiter {
    Task* task;
    uint64_t owner;
    std::byte* data;
  };

  BulkPool() = default;
  std::byte* Take(uint64_t owner);
  void Give(uint64_t owner, std::byte* data);
  // Serves those that wait and may have one.
  void Serve();

  std::unique_ptr<std::byte, FreeMemory> memory_;
  std::unique_ptr<driver::MemoryRegion> region_;
  std::vector<std::byte*> free_;
  std::deque<Waiter*> waiting_;
  FairShares shares_{kBuffers, 1};
};

}  // namespace termfs::tlib::server
