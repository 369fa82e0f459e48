// SPDX-License-Identifier: Apache-2.0
//
// ExtentMap: what is known about where a file's pages lie. A page is in an extent, or known to be a hole, or unknown.
// Client and server both keep one per inode; segments are sorted, disjoint and merged, so look-up is a binary search.
//
// Thread-safety: none; guarded by its owner. Units: pages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/page.h"

namespace termfs::fs {

inline constexpr uint64_t kHole = ~uint64_t{0};  // in place of a region page
inline constexpr uint64_t kMaxFileBytes = (uint64_t{1} << 60) - 1;
inline constexpr uint64_t kMaxFilePages = (kMaxFileBytes >> kPageBits) + 1;

inline constexpr uint64_t PagesFor(uint64_t bytes) { return (bytes >> kPageBits) + ((bytes & (kPageSize - 1)) != 0); }

struct Segment {
  uint64_t file_page = 0;
  uint64_t pages = 0;
  uint64_t region_page = kHole;  // of the first page, or kHole

  uint64_t end() const { return file_page + pages; }
  bool is_hole() const { return region_page == kHole; }
  uint64_t region_of(uint64_t page) const { return is_hole() ? kHole : region_page + (page - file_page); }
  friend bool operator==(const Segment&, const Segment&) = default;
};

class ExtentMap {
 public:
  // Everything in the range is as said from now on. REQUIRES: pages > 0, within kMaxFilePages.
  void Set(const Segment& segment);
  // The same, only for the pages of it that are unknown.
  void FillUnknown(const Segment& segment);
  void Clear() { segments_.clear(); }

  // Index of the segment that holds `page`, or -1 when it is unknown.
  ptrdiff_t Find(uint64_t page) const;
  // First unknown page in [page, end), or `end`.
  uint64_t FirstUnknown(uint64_t page, uint64_t end) const;
  // The segments that overlap [page, end), cut to it. Unknown pages are left out.
  std::vector<Segment> Cut(uint64_t page, uint64_t end) const;
  // True when every page of [page, end) is in an extent.
  bool Allocated(uint64_t page, uint64_t end) const;

  std::span<const Segment> segments() const { return segments_; }

 private:
  // Index of the first segment that ends after `page`.
  size_t LowerBound(uint64_t page) const;

  std::vector<Segment> segments_;
};

}  // namespace termfs::fs
