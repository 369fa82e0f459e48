// SPDX-License-Identifier: Apache-2.0
//
// BouncePool: page-sized, aligned buffers in registered memory, for what goes between SSD and network without a frame.
//
// Thread-safety: tasks of any workers.
// Ownership:     Bounce owns its buffers and gives them back when it is destroyed, before the pool.
// Waiting:       Take waits until others give back, first come first served but for owners of tasks who have their
// share
//                (fair_shares.h). So take before holding any page (see invariant 6 in page_states.h): a task that has
//                buffers may wait for pages, never the reverse.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/page.h"
#include "base/result.h"
#include "driver/nic.h"
#include "tlib/server/fair_shares.h"
#include "tlib/server/task.h"

namespace termfs::tlib::server {

class BouncePool;

// Up to kWindowPages pages of memory; move-only.
class Bounce {
 public:
  static constexpr uint32_t kWindowPages = 128;

  Bounce() = default;
  Bounce(Bounce&& other) noexcept { *this = std::move(other); }
  Bounce& operator=(Bounce&& other) noexcept;
  Bounce(const Bounce&) = delete;
  Bounce& operator=(const Bounce&) = delete;
  ~Bounce() { Release(); }

  uint32_t count() const { return count_; }
  std::byte* page(uint32_t i) const;
  driver::LKey lkey() const;

 private:
  friend class BouncePool;
  void Release();

  BouncePool* pool_ = nullptr;
  uint64_t owner_ = 0;
  uint32_t count_ = 0;
  std::array<uint32_t, kWindowPages> pages_;
};

class BouncePool {
 public:
  // `bytes`: at least a window. Errors: of the memory's allocation and registration.
  static Result<std::unique_ptr<BouncePool>> Create(driver::Nic& nic, driver::ProtectionDomain& domain, size_t bytes);
  BouncePool(const BouncePool&) = delete;
  BouncePool& operator=(const BouncePool&) = delete;

  // REQUIRES: count <= Bounce::kWindowPages, in a task.
  Bounce Take(uint32_t count) EXCLUDES(mutex_);

 private:
  friend class Bounce;
  struct Waiter {
    Task* task;
    Bounce* bounce;
    uint64_t owner;
    uint32_t count;
    bool served;
  };

  explicit BouncePool(uint64_t pages) : shares_(static_cast<uint32_t>(pages), Bounce::kWindowPages) {}
  void Give(uint64_t owner, const uint32_t* pages, uint32_t count) EXCLUDES(mutex_);
  // Serves those that wait and may have what they ask for.
  void Serve() REQUIRES(mutex_);
  void Fill(Waiter& waiter) REQUIRES(mutex_);

  std::unique_ptr<driver::Memory> memory_;
  std::unique_ptr<driver::MemoryRegion> region_;
  Mutex mutex_;
  std::vector<uint32_t> free_ GUARDED_BY(mutex_);
  std::deque<Waiter*> waiting_ GUARDED_BY(mutex_);
  FairShares shares_ GUARDED_BY(mutex_);
};

}  // namespace termfs::tlib::server
