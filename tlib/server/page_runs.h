// SPDX-License-Identifier: Apache-2.0
//
// PageRuns: accesses to single pages, given in ascending order, gathered into as few accesses to the device as adjacent
// pages allow. Holds up to a window's pages without allocating.
//
// Thread-safety: none. Ownership: refers to the buffers; must stay until the device's Run returned.
#pragma once

#include <cstdint>
#include <span>

#include "base/page.h"
#include "tlib/server/block_device.h"
#include "tlib/server/inline_vector.h"

namespace termfs::tlib::server {

class PageRuns {
 public:
  static constexpr uint32_t kMaxPages = 128;
  static_assert(kMaxPages <= BlockDevice::kMaxPieces);

  explicit PageRuns(BlockIo::Kind kind) : kind_(kind) {}
  PageRuns(const PageRuns&) = delete;
  PageRuns& operator=(const PageRuns&) = delete;

  // Bytes [begin, end) of `page` from or to `buffer` + begin. REQUIRES: page above the last one, fewer than kMaxPages.
  void Add(PageIndex page, std::byte* buffer, uint64_t begin = 0, uint64_t end = kPageSize) {
    const uint64_t offset = StartOf(page).value + begin;
    const iovec& piece = pieces_.Push({.iov_base = buffer + begin, .iov_len = end - begin});
    if (!ios_.empty() && offset == end_) {
      std::span<const iovec>& pieces = ios_[ios_.size() - 1].pieces;
      pieces = {pieces.data(), pieces.size() + 1};
    } else {
      ios_.Push({.kind = kind_, .offset = offset, .pieces = {&piece, 1}, .status = {}});
    }
    run_of_page_.Push(static_cast<uint8_t>(ios_.size() - 1));
    end_ = offset + (end - begin);
  }
  void Clear() {
    pieces_.Clear();
    ios_.Clear();
    run_of_page_.Clear();
  }

  bool empty() const { return pieces_.empty(); }
  uint32_t pages() const { return static_cast<uint32_t>(pieces_.size()); }
  std::span<BlockIo> ios() { return ios_; }
  // Of the access that the i-th added page is part of; after Run.
  const Status& StatusOf(uint32_t i) const { return ios_[run_of_page_[i]].status; }
  Status FirstError() const {
    for (const BlockIo& io : ios_) {
      if (!io.status.ok()) {
        return io.status;
      }
    }
    return Status::Ok();
  }

 private:
  const BlockIo::Kind kind_;
  uint64_t end_ = 0;
  InlineVector<iovec, kMaxPages> pieces_;
  InlineVector<BlockIo, kMaxPages> ios_;
  InlineVector<uint8_t, kMaxPages> run_of_page_;
};

}  // namespace termfs::tlib::server
