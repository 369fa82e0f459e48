// SPDX-License-Identifier: Apache-2.0
//
// Pages and the strong types at the edges of the folders. A region is seen as pages of 4 KiB everywhere.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace termfs {

inline constexpr uint64_t kPageBits = 12;
inline constexpr uint64_t kPageSize = uint64_t{1} << kPageBits;  // bytes

// A page's number within a region.
struct PageIndex {
  uint64_t value = 0;
  friend auto operator<=>(const PageIndex&, const PageIndex&) = default;
};

// Bytes from the start of a region.
struct RegionOffset {
  uint64_t value = 0;
  friend auto operator<=>(const RegionOffset&, const RegionOffset&) = default;
  PageIndex page() const { return {value >> kPageBits}; }
  uint64_t in_page() const { return value & (kPageSize - 1); }
};

inline constexpr RegionOffset StartOf(PageIndex page) { return {page.value << kPageBits}; }
inline constexpr uint64_t RoundDownToPage(uint64_t bytes) { return bytes & ~(kPageSize - 1); }
inline constexpr uint64_t RoundUpToPage(uint64_t bytes) { return RoundDownToPage(bytes + kPageSize - 1); }

}  // namespace termfs
