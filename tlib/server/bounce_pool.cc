// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/bounce_pool.h"

#include <algorithm>

#include "base/check.h"

namespace termfs::tlib::server {

Bounce& Bounce::operator=(Bounce&& other) noexcept {
  if (this != &other) {
    Release();
    pool_ = std::exchange(other.pool_, nullptr);
    count_ = std::exchange(other.count_, 0);
    std::copy_n(other.pages_.begin(), count_, pages_.begin());
  }
  return *this;
}

std::byte* Bounce::page(uint32_t i) const {
  TERMFS_CHECK(i < count_);
  return pool_->memory_->data() + uint64_t{pages_[i]} * kPageSize;
}

driver::LKey Bounce::lkey() const { return pool_->region_->lkey(); }

void Bounce::Release() {
  if (count_ > 0) {
    pool_->Give(pages_.data(), count_);
    count_ = 0;
  }
}

Result<std::unique_ptr<BouncePool>> BouncePool::Create(driver::Nic& nic, driver::ProtectionDomain& domain,
                                                       size_t bytes) {
  std::unique_ptr<BouncePool> pool(new BouncePool());
  const uint64_t pages = std::max<uint64_t>(bytes / kPageSize, Bounce::kWindowPages);
  ASSIGN_OR_RETURN(pool->memory_, nic.AllocateMemory({.bytes = pages * kPageSize, .name = "termfs-bounce"}));
  ASSIGN_OR_RETURN(pool->region_,
                   domain.RegisterMemory(pool->memory_->data(), pool->memory_->size(), driver::Access::kLocalWrite));
  MutexLock lock(pool->mutex_);
  pool->free_.reserve(pages);
  for (uint64_t page = pages; page-- > 0;) {
    pool->free_.push_back(static_cast<uint32_t>(page));
  }
  return pool;
}

void BouncePool::Fill(Bounce& bounce, uint32_t count) {
  bounce.pool_ = this;
  bounce.count_ = count;
  for (uint32_t i = 0; i < count; i++) {
    bounce.pages_[i] = free_.back();
    free_.pop_back();
  }
}

Bounce BouncePool::Take(uint32_t count) {
  TERMFS_CHECK(count <= Bounce::kWindowPages);
  Bounce bounce;
  if (count == 0) {
    return bounce;
  }
  mutex_.Lock();
  if (waiting_.empty() && free_.size() >= count) {
    Fill(bounce, count);
  } else {
    Waiter self{.task = &Task::Current(), .bounce = &bounce, .count = count, .served = false};
    waiting_.push_back(&self);
    while (!self.served) {
      mutex_.Unlock();
      Task::Park();  // bounded by the device I/O and network deadlines of those who hold buffers
      mutex_.Lock();
    }
  }
  mutex_.Unlock();
  return bounce;
}

void BouncePool::Give(const uint32_t* pages, uint32_t count) {
  MutexLock lock(mutex_);
  free_.insert(free_.end(), pages, pages + count);
  while (!waiting_.empty() && free_.size() >= waiting_.front()->count) {
    Waiter* const waiter = waiting_.front();
    waiting_.pop_front();
    Fill(*waiter->bounce, waiter->count);
    waiter->served = true;
    waiter->task->Unpark();  // under the mutex: the waiter cannot leave before
  }
}

}  // namespace termfs::tlib::server
