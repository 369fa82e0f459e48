// SPDX-License-Identifier: Apache-2.0
//
// RegisteredBuffer: a channel's bulk memory, which the server may READ and WRITE. Shared by the channel and by every
// call that named it: a call that timed out keeps its buffer until its reply comes, so that a late WRITE lands in
// memory that nobody uses any more.
//
// Where messages are sealed, what the server WRITEs arrives in a second memory, at the same place, and is taken over
// when its tag is known to be right: no peer can write to bytes().
//
// Thread-safety: the channel's thread.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>

#include "base/result.h"
#include "driver/nic.h"
#include "tlib/rpc/messages.h"

namespace termfs::tlib::client {

class RegisteredBuffer {
 public:
  static Result<std::shared_ptr<RegisteredBuffer>> Create(driver::Nic& nic, driver::ProtectionDomain& domain,
                                                          size_t bytes, bool sealed) {
    using driver::Access;
    std::shared_ptr<RegisteredBuffer> buffer(new RegisteredBuffer);
    RETURN_IF_ERROR(buffer->own_.Create(nic, domain, bytes,
                                        sealed ? Access::kLocalWrite | Access::kRemoteRead
                                               : Access::kLocalWrite | Access::kRemoteRead | Access::kRemoteWrite));
    if (sealed) {
      RETURN_IF_ERROR(buffer->arrivals_.Create(nic, domain, bytes, Access::kLocalWrite | Access::kRemoteWrite));
    }
    buffer->bytes_ = {buffer->own_.memory->data(), buffer->own_.memory->size()};
    buffer->lkey_ = buffer->own_.region->lkey();
    return buffer;
  }

  std::span<std::byte> bytes() const { return bytes_; }
  driver::LKey lkey() const { return lkey_; }
  bool Contains(const std::byte* data, size_t length) const {
    return data >= bytes_.data() && length <= bytes_.size() &&
           static_cast<size_t>(data - bytes_.data()) <= bytes_.size() - length;
  }
  // Bytes to the server, and room for bytes from it. REQUIRES: Contains(data, length).
  RemoteBuffer Describe(const std::byte* data, uint32_t length) const { return DescribeIn(own_, data, length); }
  RemoteBuffer DescribeRoom(const std::byte* data, uint32_t length) const {
    return DescribeIn(arrivals_.region != nullptr ? arrivals_ : own_, data, length);
  }
  // Copies what has arrived for there, and returns it. REQUIRES: Contains(data, length); sealed.
  std::span<const std::byte> TakeOver(std::byte* data, size_t length) const {
    std::memcpy(data, arrivals_.memory->data() + (data - bytes_.data()), length);
    return {data, length};
  }

 private:
  struct Registered {
    Status Create(driver::Nic& nic, driver::ProtectionDomain& domain, size_t bytes, driver::Access access) {
      ASSIGN_OR_RETURN(memory, nic.AllocateMemory({.bytes = bytes, .name = "termfs-channel", .on_demand = true}));
      ASSIGN_OR_RETURN(region, domain.RegisterMemory(memory->data(), memory->size(), access));
      return Status::Ok();
    }
    std::unique_ptr<driver::Memory> memory;
    std::unique_ptr<driver::MemoryRegion> region;
  };
  RegisteredBuffer() = default;
  RemoteBuffer DescribeIn(const Registered& in, const std::byte* data, uint32_t length) const {
    return {.offset = static_cast<uint64_t>(data - bytes_.data()), .rkey = in.region->rkey().value, .length = length};
  }

  Registered own_;
  Registered arrivals_;  // not there unless sealed
  std::span<std::byte> bytes_;
  driver::LKey lkey_;
};

}  // namespace termfs::tlib::client
