// SPDX-License-Identifier: Apache-2.0
//
// PageRuns: accesses to single pages, given in ascending order, gathered into as few accesses to the device as adjacent
// pages allow. Holds up to kPages pages without allocating: PageRuns those of a window, on a task's stack, and
// LongPageRuns those of a batch that the cleaner writes back, which are too many for that.
//
// Thread-safety: none. Ownership: refers to the buffers; must stay until the device's Run returned.
#pragma once

#include <cstdint>
#include <span>

#include "base/page.h"
#include "tlib/server/block_device.h"
#include "tlib/server/inline_vector.h"

namespace termfs::tlib::server {

template <uint32_t kPages>
class PageRunsOf {
 public:
  static constexpr uint32_t kMaxPages = kPages;
  // Of an access. Frames lie anywhere, and disks take some 250 pieces: what is longer is split, with a short rest.
  static constexpr size_t kMostPieces = 128;
  static_assert(kMostPieces <= BlockDevice::kMaxPieces);
  static constexpr uint64_t kMostBytes = 1 << 20;

  explicit PageRunsOf(BlockIo::Kind kind) : kind_(kind) {}
  PageRunsOf(const PageRunsOf&) = delete;
  PageRunsOf& operator=(const PageRunsOf&) = delete;

  // Bytes [begin, end) of `page` from or to `buffer` + begin. REQUIRES: page above the last one, fewer than kMaxPages.
  void Add(PageIndex page, std::byte* buffer, uint64_t begin = 0, uint64_t end = kPageSize) {
    const uint64_t offset = StartOf(page).value + begin;
    BlockIo* const last = !ios_.empty() && offset == end_ ? &ios_[ios_.size() - 1] : nullptr;
    if (last != nullptr && IsEndOfLastPiece(buffer + begin) && offset - last->offset < kMostBytes) {
      pieces_[pieces_.size() - 1].iov_len += end - begin;
    } else {
      const iovec& piece = pieces_.Push({.iov_base = buffer + begin, .iov_len = end - begin});
      if (last != nullptr && last->pieces.size() < kMostPieces && offset - last->offset < kMostBytes) {
        last->pieces = {last->pieces.data(), last->pieces.size() + 1};
      } else {
        ios_.Push({.kind = kind_, .offset = offset, .pieces = {&piece, 1}, .status = {}});
      }
    }
    run_of_page_.Push(static_cast<uint16_t>(ios_.size() - 1));
    end_ = offset + (end - begin);
  }
  void Clear() {
    pieces_.Clear();
    ios_.Clear();
    run_of_page_.Clear();
  }

  bool empty() const { return pieces_.empty(); }
  uint32_t pages() const { return static_cast<uint32_t>(run_of_page_.size()); }
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
  bool IsEndOfLastPiece(const std::byte* buffer) const {
    const iovec& last = pieces_[pieces_.size() - 1];
    return static_cast<const std::byte*>(last.iov_base) + last.iov_len == buffer;
  }

  const BlockIo::Kind kind_;
  uint64_t end_ = 0;
  InlineVector<iovec, kMaxPages> pieces_;
  InlineVector<BlockIo, kMaxPages> ios_;
  InlineVector<uint16_t, kMaxPages> run_of_page_;
};

using PageRuns = PageRunsOf<128>;
using LongPageRuns = PageRunsOf<512>;

}  // namespace termfs::tlib::server
