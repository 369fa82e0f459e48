// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/message_buffers.h"

#include <utility>

namespace termfs::tlib::server {

Result<uint32_t> MessageBuffers::Take() {
  if (free_.empty()) {
    RETURN_IF_ERROR(AddChunk());
  }
  const uint32_t number = free_.back();
  free_.pop_back();
  return number;
}

Status MessageBuffers::AddChunk() {
  constexpr size_t kBytes = size_t{kPerChunk} * kMaxSealed;
  Chunk chunk;
  chunk.bytes = std::make_unique_for_overwrite<std::byte[]>(kBytes);
  ASSIGN_OR_RETURN(chunk.region, domain_.RegisterMemory(chunk.bytes.get(), kBytes, driver::Access::kLocalWrite));
  const auto first = static_cast<uint32_t>(chunks_.size()) * kPerChunk;
  chunks_.push_back(std::move(chunk));
  for (uint32_t i = kPerChunk; i > 0; i--) {
    free_.push_back(first + i - 1);
  }
  return Status::Ok();
}

}  // namespace termfs::tlib::server
