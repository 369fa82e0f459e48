// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/bulk_pool.h"

#include <algorithm>
#include <cstdlib>

#include "base/page.h"

namespace termfs::tlib::server {

void BulkPool::FreeMemory::operator()(std::byte* memory) const { std::free(memory); }

Result<std::unique_ptr<BulkPool>> BulkPool::Create(driver::ProtectionDomain& domain) {
  std::unique_ptr<BulkPool> pool(new BulkPool);
  constexpr size_t kBytes = size_t{kBuffers} * kBufferBytes;
  pool->memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kPageSize, kBytes)));
  if (pool->memory_ == nullptr) {
    return Status::Errno(ENOMEM, "allocate a worker's bulk buffers");
  }
  ASSIGN_OR_RETURN(pool->region_, domain.RegisterMemory(pool->memory_.get(), kBytes, driver::Access::kLocalWrite));
  for (uint32_t i = 0; i < kBuffers; i++) {
    pool->free_.push_back(pool->memory_.get() + size_t{i} * kBufferBytes);
  }
  return pool;
}

std::byte* BulkPool::Take(uint64_t owner) {
  Waiter self{.task = &Task::Current(), .owner = owner, .data = nullptr};
  shares_.BeginWait(owner);
  waiting_.push_back(&self);
  Serve();
  while (self.data == nullptr) {
    Task::Park();
  }
  return self.data;
}

void BulkPool::Give(uint64_t owner, std::byte* data) {
  free_.push_back(data);
  shares_.Give(owner, 1);
  Serve();
}

void BulkPool::Serve() {
  for (auto next = waiting_.begin(); next != waiting_.end() && !free_.empty();) {
    Waiter& waiter = **next;
    if (!shares_.MayTake(waiter.owner, 1)) {
      ++next;
      continue;
    }
    waiter.data = free_.back();
    free_.pop_back();
    shares_.Take(waiter.owner, 1);
    shares_.EndWait(waiter.owner);
    waiter.task->Unpark();
    next = waiting_.erase(next);
  }
}

}  // namespace termfs::tlib::server
