// SPDX-License-Identifier: Apache-2.0
//
// RegionIoImpl: RegionIo over a Region, with the bytes coming from and going to clients' buffers.
//
// Thread-safety: any worker's coroutines. Ownership: refers to the region. Errors: RegionIo's.
#pragma once

#include <functional>
#include <span>

#include "tlib/rpc/decode.h"
#include "tlib/server/call.h"
#include "tlib/server/region.h"
#include "tlib/server/server.h"

namespace termfs::tlib::server {

class RegionIoImpl final : public RegionIo {
 public:
  explicit RegionIoImpl(Region& region) : region_(region) {}

  Status Read(RegionOffset offset, std::span<std::byte> to) override { return region_.Read(offset, to); }
  Status Write(RegionOffset offset, std::span<const std::byte> from) override { return region_.Write(offset, from); }
  Status WriteFrom(Call& call, RegionOffset offset, uint32_t in_offset, uint32_t length,
                   const std::function<Status()>& check) override;
  Status ReadTo(Call& call, RegionOffset offset, uint32_t out_offset, uint32_t length) override;
  Status Zero(std::span<const PageRange> ranges) override { return region_.Zero(ranges); }
  Status Flush(std::span<const PageRange> ranges) override { return region_.Flush(ranges); }
  uint64_t failed_flushes() const override { return region_.failed_flushes(); }

  uint64_t bytes() const { return region_.pages() << kPageBits; }

  // The pages of `read` that the client misses, to its buffer; `present`: those that were in a frame.
  Status ReadMissing(CallImpl& call, const DecodedRead& read, ReadBitmap& present);

 private:
  Region& region_;
};

}  // namespace termfs::tlib::server
