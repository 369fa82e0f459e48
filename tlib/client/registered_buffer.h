// SPDX-License-Identifier: Apache-2.0
//
// RegisteredBuffer: a channel's bulk memory, which the server may READ and WRITE. Shared by the channel and by every
// call that named it: a call that timed out keeps its buffer until its reply comes, so that a late WRITE lands in
// memory that nobody uses any more.
//
// Thread-safety: the channel's thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/result.h"
#include "driver/nic.h"
#include "tlib/rpc/messages.h"

namespace termfs::tlib::client {

class RegisteredBuffer {
 public:
  static Result<std::shared_ptr<RegisteredBuffer>> Create(driver::Nic& nic, driver::ProtectionDomain& domain,
                                                          size_t bytes) {
    std::shared_ptr<RegisteredBuffer> buffer(new RegisteredBuffer);
    ASSIGN_OR_RETURN(buffer->memory_,
                     nic.AllocateMemory({.bytes = bytes, .name = "termfs-channel", .on_demand = true}));
    ASSIGN_OR_RETURN(buffer->region_, domain.RegisterMemory(buffer->memory_->data(), buffer->memory_->size(),
                                                            driver::Access::kLocalWrite | driver::Access::kRemoteRead |
                                                                driver::Access::kRemoteWrite));
    buffer->bytes_ = {buffer->memory_->data(), buffer->memory_->size()};
    buffer->lkey_ = buffer->region_->lkey();
    return buffer;
  }

  std::span<std::byte> bytes() const { return bytes_; }
  driver::LKey lkey() const { return lkey_; }
  bool Contains(const std::byte* data, size_t length) const {
    return data >= bytes_.data() && length <= bytes_.size() &&
           static_cast<size_t>(data - bytes_.data()) <= bytes_.size() - length;
  }
  // REQUIRES: Contains(data, length).
  RemoteBuffer Describe(const std::byte* data, uint32_t length) const {
    return {.offset = static_cast<uint64_t>(data - bytes_.data()), .rkey = region_->rkey().value, .length = length};
  }

 private:
  RegisteredBuffer() = default;
  std::unique_ptr<driver::Memory> memory_;
  std::unique_ptr<driver::MemoryRegion> region_;
  std::span<std::byte> bytes_;
  driver::LKey lkey_;
};

}  // namespace termfs::tlib::client
