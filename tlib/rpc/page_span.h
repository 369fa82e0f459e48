// SPDX-License-Identifier: Apache-2.0
//
// PageSpan: the pages that a byte range of a region touches, and the part of the range that lies in each. Client and
// server number the pages of a request with it, so that bit i means the same page to both.
//
// Thread-safety: a value.
// Units:         bytes; part offsets count from the start of the range.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/page.h"

namespace termfs::tlib {

struct PagePart {
  uint32_t offset = 0;  // from the start of the range
  uint32_t length = 0;
};

class PageSpan {
 public:
  // REQUIRES: length > 0, offset + length does not overflow.
  constexpr PageSpan(uint64_t offset, uint32_t length)
      : offset_(offset),
        length_(length),
        first_(offset >> kPageBits),
        count_(static_cast<uint32_t>(((offset + length - 1) >> kPageBits) - first_ + 1)) {}

  constexpr PageIndex page(uint32_t i) const { return {first_ + i}; }
  constexpr uint64_t first() const { return first_; }
  constexpr uint32_t count() const { return count_; }
  // 64-bit words that a bit per page takes.
  constexpr uint32_t words() const { return (count_ + 63) / 64; }
  // Pages [first, first + count) of the span; all of it inside the range.
  constexpr PagePart part(uint32_t first, uint32_t count = 1) const {
    const uint64_t begin = std::max(offset_, (first_ + first) << kPageBits);
    const uint64_t end = std::min(offset_ + length_, (first_ + first + count) << kPageBits);
    return {static_cast<uint32_t>(begin - offset_), static_cast<uint32_t>(end - begin)};
  }

 private:
  uint64_t offset_;
  uint32_t length_;
  uint64_t first_;
  uint32_t count_;
};

}  // namespace termfs::tlib
