// SPDX-License-Identifier: Apache-2.0
//
// MessageBuffers: a worker's registered buffers for messages, of kMaxSealed bytes each: those that its connections
// send, and those that its shared receive queues hold. They come by chunks, when they are needed, and stay: there are
// as many as messages were under way at a time, however many connections there are.
//
// Thread-safety: the worker's thread; Create before it starts.
// Ownership:     owns the memory, which outlives every use of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "driver/nic.h"
#include "tlib/rpc/messages.h"

namespace termfs::tlib::server {

class MessageBuffers {
 public:
  static constexpr uint32_t kPerChunk = 64;

  explicit MessageBuffers(driver::ProtectionDomain& domain) : domain_(domain) {}
  MessageBuffers(const MessageBuffers&) = delete;
  MessageBuffers& operator=(const MessageBuffers&) = delete;

  // The number of a buffer that is free no more. ENOMEM.
  Result<uint32_t> Take();
  void Give(uint32_t number) { free_.push_back(number); }

  std::byte* data(uint32_t number) const {
    return chunks_[number / kPerChunk].bytes.get() + size_t{number % kPerChunk} * kMaxSealed;
  }
  driver::LKey lkey(uint32_t number) const { return chunks_[number / kPerChunk].region->lkey(); }

 private:
  struct Chunk {
    std::unique_ptr<std::byte[]> bytes;
    std::unique_ptr<driver::MemoryRegion> region;  // destroyed first
  };
  Status AddChunk();

  driver::ProtectionDomain& domain_;
  std::vector<Chunk> chunks_;
  std::vector<uint32_t> free_;
};

}  // namespace termfs::tlib::server
