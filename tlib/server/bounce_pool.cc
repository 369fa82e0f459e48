// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/bounce_pool.h"

#include <algorithm>

#include "base/check.h"

namespace termfs::tlib::server {

Bounce& Bounce::operator=(Bounce&& other) noexcept {
  if (this != &other) {
    Release();
    pool_ = std::exchange(other.pool_, nullptr);
    owner_ = other.owner_;
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
    pool_->Give(owner_, pages_.data(), count_);
    count_ = 0;
  }
}

Result<std::unique_ptr<BouncePool>> BouncePool::Create(driver::Nic& nic, driver::ProtectionDomain& domain,
                                                       size_t bytes) {
  const uint64_t pages = std::max<uint64_t>(bytes / kPageSize, Bounce::kWindowPages);
  std::unique_ptr<BouncePool> pool(new BouncePool(pages));
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

void BouncePool::Fill(Waiter& waiter) {
  Bounce& bounce = *waiter.bounce;
  bounce.pool_ = this;
  bounce.owner_ = waiter.owner;
  bounce.count_ = waiter.count;
  for (uint32_t i = 0; i < waiter.count; i++) {
    bounce.pages_[i] = free_.back();
    free_.pop_back();
  }
  shares_.Take(waiter.owner, waiter.count);
  shares_.EndWait(waiter.owner);
  waiter.served = true;
}

// One that may have more than there is keeps those behind it waiting, or it would wait for ever.
void BouncePool::Serve() {
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    Waiter& waiter = **next;
    if (!shares_.MayTake(waiter.owner, waiter.count)) {
      ++next;
      continue;
    }
    if (free_.size() < waiter.count) {
      return;
    }
    next = waiting_.erase(next);
    Fill(waiter);
    waiter.task->Unpark();  // under the mutex: the waiter cannot leave before
  }
}

Bounce BouncePool::Take(uint32_t count) {
  TERMFS_CHECK(count <= Bounce::kWindowPages);
  Bounce bounce;
  if (count == 0) {
    return bounce;
  }
  Task* const task = Task::InTask() ? &Task::Current() : nullptr;  // none at the start, when nothing is held
  Waiter self{
      .task = task, .bounce = &bounce, .owner = task != nullptr ? task->owner() : 0, .count = count, .served = false};
  mutex_.Lock();
  shares_.BeginWait(self.owner);
  if (waiting_.empty() && free_.size() >= count && shares_.MayTake(self.owner, count)) {
    Fill(self);
  } else {
    TERMFS_CHECK(task != nullptr);
    waiting_.push_back(&self);
    Serve();
    while (!self.served) {
      mutex_.Unlock();
      Task::Park();  // bounded by the device I/O and network deadlines of those who hold buffers
      mutex_.Lock();
    }
  }
  mutex_.Unlock();
  return bounce;
}

void BouncePool::Give(uint64_t owner, const uint32_t* pages, uint32_t count) {
  MutexLock lock(mutex_);
  free_.insert(free_.end(), pages, pages + count);
  shares_.Give(owner, count);
  Serve();
}

}  // namespace termfs::tlib::server
