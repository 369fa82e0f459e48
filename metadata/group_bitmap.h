// SPDX-License-Identifier: Apache-2.0
//
// GroupBitmap: which pages of an allocation group (128 MiB of region) are taken; bit set means taken. Stored as the
// pages where taken and free change, or as one value of 4 KiB where that is shorter; a group that has none is all free.
// The region's last group may be shorter than the bitmap.
//
// Thread-safety: a value.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace termfs::metadata {

inline constexpr uint64_t kGroupPages = 32768;

struct PageRun {
  uint32_t first = 0;  // in the group
  uint32_t pages = 0;
};

class GroupBitmap {
 public:
  // An all-free group of `pages`. REQUIRES: pages <= kGroupPages.
  explicit GroupBitmap(uint32_t pages) : pages_(pages) {}

  static Result<GroupBitmap> Decode(uint32_t pages, std::string_view bytes);
  std::string Encode() const;

  uint32_t pages() const { return pages_; }
  bool taken(uint32_t page) const { return (words_[page / 64] >> (page % 64) & 1) != 0; }
  // REQUIRES: the run lies within kGroupPages.
  void Take(PageRun run) { Set(run, true); }
  void Release(PageRun run) { Set(run, false); }
  // Whether every page of the run is taken (or free).
  bool AllTaken(PageRun run) const { return FindTaken(run.first, false) >= run.first + run.pages; }

  // The first free run at or after `from`, whole; 0 pages when there is none.
  PageRun NextFree(uint32_t from) const;
  // A free run of at least `want` pages, the first at or after `from`, else the first; else the longest there is.
  PageRun FindFree(uint32_t from, uint32_t want) const;

  uint32_t CountFree() const;
  uint32_t LongestFree() const { return FindFree(0, kGroupPages + 1).pages; }

 private:
  static Result<GroupBitmap> DecodeChanges(uint32_t pages, std::string_view bytes);
  static Result<GroupBitmap> DecodeWords(uint32_t pages, std::string_view bytes);

  void Set(PageRun run, bool taken);
  // The first page >= from whose bit is `value`; kGroupPages when there is none.
  uint32_t FindTaken(uint32_t from, bool value) const;

  uint32_t pages_;
  std::array<uint64_t, kGroupPages / 64> words_{};
};

}  // namespace termfs::metadata
