// SPDX-License-Identifier: Apache-2.0
//
// The RNIC page table of a TERM region, in memory that peers map read-only: a header, then an entry per page
// (driver/page_table.h, where the protocol is); and the reader's side of it.
//
// Thread-safety: writers of one page are serialised by the caller; readers in any process at any time.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/page.h"
#include "driver/nic.h"
#include "driver/page_table.h"
#include "driver/softnic/racy_copy.h"

namespace termfs::driver::softnic {

inline constexpr uint64_t kMaxPages = kFrameMask - 1;  // frames are numbered below the special values

struct PageTableHeader {
  using Line = std::array<std::atomic<uint64_t>, 8>;
  // The line in force is lines[version % kLines]; with so many, a reader fails only when the owner changes the pattern
  // over and over while it loads eight words.
  static constexpr uint64_t kLines = 16;

  alignas(64) std::atomic<uint64_t> pages;  // size of the region
  alignas(64) std::atomic<uint64_t> pattern_version;
  alignas(64) Line lines[kLines];
};
inline constexpr size_t kEntriesOffset = kPageSize;
static_assert(sizeof(PageTableHeader) <= kEntriesOffset);
constexpr size_t PageTableBytes(uint64_t max_pages) { return kEntriesOffset + max_pages * sizeof(PageTableEntry); }

// --- The owner's side.

// The line in force is never written. REQUIRES: one caller at a time.
inline void StorePattern(PageTableHeader& header, const Pattern& pattern) {
  const uint64_t next = header.pattern_version.load(std::memory_order_relaxed) + 1;
  FenceBeforeRacyWrites();  // a reader that sees a word of the new line sees the version before it
  std::array<uint64_t, 8> words;
  std::memcpy(words.data(), pattern.line.data(), sizeof(words));
  for (size_t i = 0; i < words.size(); i++) {
    header.lines[next % PageTableHeader::kLines][i].store(words[i], std::memory_order_relaxed);
  }
  header.pattern_version.store(next, std::memory_order_release);
}

// --- The reader's side.

// False: the owner changed the pattern at the same moment, time and again.
inline bool LoadPattern(const PageTableHeader& header, Pattern* pattern, uint64_t* version) {
  for (int attempt = 0; attempt < 1000; attempt++) {
    const uint64_t seen = header.pattern_version.load(std::memory_order_acquire);
    std::array<uint64_t, 8> words;
    for (size_t i = 0; i < words.size(); i++) {
      words[i] = header.lines[seen % PageTableHeader::kLines][i].load(std::memory_order_relaxed);
    }
    FenceAfterRacyReads();
    // Line `seen` is written again on the way to version seen + kLines, when the version is one less.
    if (header.pattern_version.load(std::memory_order_relaxed) - seen <= PageTableHeader::kLines - 2) {
      std::memcpy(pattern->line.data(), words.data(), sizeof(words));
      *version = seen;
      return true;
    }
  }
  return false;
}

enum class PageCopy {
  kData,      // the bytes of one version of the page
  kMagic,     // the page is absent
  kUnstable,  // it is being written, or changed under every attempt
  kCorrupt,   // the entry names a frame that does not exist
};

// Copies `length` bytes at `in_page` of the page whose entry this is. On anything but kData, `to` may have been
// written to. `Copy`: RacyCopy, or RacyCopyOfCold.
template <auto Copy = RacyCopy>
PageCopy CopyPage(const PageTableEntry& entry, const std::byte* frames, uint32_t max_frames, uint32_t in_page,
                  std::byte* to, size_t length) {
  constexpr int kAttempts = 4;
  for (int attempt = 0; attempt < kAttempts; attempt++) {
    const uint64_t seen = entry.load(std::memory_order_acquire);
    const uint32_t frame = FrameOf(seen);
    if (frame >= max_frames) [[unlikely]] {
      return frame == kMagicFrame ? PageCopy::kMagic
                                  : (frame == kWritingFrame ? PageCopy::kUnstable : PageCopy::kCorrupt);
    }
    Copy(to, frames + (uint64_t{frame} << kPageBits) + in_page, length);
    FenceAfterRacyReads();
    if (entry.load(std::memory_order_relaxed) == seen) [[likely]] {
      return PageCopy::kData;
    }
  }
  return PageCopy::kUnstable;
}

// Starts loading what CopyPage will copy. Frames lie about at random, where no processor expects the next one.
inline void PrefetchPage(const PageTableEntry& entry, const std::byte* frames, uint32_t max_frames, uint32_t in_page,
                         size_t length) {
  const uint32_t frame = FrameOf(entry.load(std::memory_order_relaxed));
  if (frame >= max_frames) {
    return;
  }
  constexpr size_t kLine = 64;
  constexpr size_t kLines = 8;  // past these the processor's own prefetcher has caught on
  const std::byte* const from = frames + (uint64_t{frame} << kPageBits) + in_page;
  const size_t bytes = std::min({length, kLines * kLine, size_t{kPageSize - in_page}});
  for (size_t at = 0; at < bytes; at += kLine) {
    __builtin_prefetch(from + at);
  }
}

}  // namespace termfs::driver::softnic
