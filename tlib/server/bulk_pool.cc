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

std::byte* BulkPool::Take() {
  Task* const task = &Task::Current();
  if (free_.empty() || !waiting_.empty()) {
    waiting_.push_back(task);
    while (free_.empty() || waiting_.front() != task) {
      Task::Park();
    }
    waiting_.pop_front();
  }
  std::byte* const data = free_.back();
  free_.pop_back();
  if (!free_.empty() && !waiting_.empty()) {
    waiting_.front()->Unpark();
  }
  return data;
}

void BulkPool::Give(std::byte* data) {
  free_.push_back(data);
  if (!waiting_.empty()) {
    waiting_.front()->Unpark();
  }
}

}  // namespace termfs::tlib::server
