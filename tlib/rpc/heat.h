// SPDX-License-Identifier: Apache-2.0
//
// The memory region in which a client exports its access counts, and which the server READs one-sided twice in a
// sample period, or every eighth of a second, while the client publishes some (messages.h). Two buffers alternate: the
// client fills the one that `sequence` does not name, then stores sequence + 1 (release); the server READs the header,
// then the buffer `sequence % 2` names, then the header again, and drops what it got when the sequence moved meanwhile:
// the client may have begun to fill that buffer again. A sequence counts once. Beside each buffer stands how many pages
// were READ and how many were absent in the time that it tells of: both by the client, as what the server itself sees
// of misses is of another time. Nothing in it is trusted with more than the choice of what is in memory: page numbers
// beyond the region are skipped, `count` by the memory and by kMaxHeatEntries, and what one report says of one page, or
// of all, is cut to what is possible.
#pragma once

#include <cstdint>

namespace termfs::tlib {

struct HeatHeader {
  uint64_t sequence = 0;  // 0: nothing published yet
  uint32_t count[2] = {0, 0};
  uint32_t capacity = 0;  // entries per buffer
  uint32_t hit_pages[2] = {0, 0};
  uint32_t missed_pages[2] = {0, 0};
  uint32_t reserved[7] = {};
};
static_assert(sizeof(HeatHeader) == 64);

inline constexpr uint32_t kMaxHeatEntries = 1U << 17;  // per buffer: distinct pages; more are left out

struct HeatEntry {
  uint32_t page = 0;
  uint32_t accesses = 0;
};
static_assert(sizeof(HeatEntry) == 8);

inline constexpr uint64_t HeatBufferOffset(uint64_t sequence, uint32_t capacity) {
  return sizeof(HeatHeader) + (sequence % 2) * uint64_t{capacity} * sizeof(HeatEntry);
}

}  // namespace termfs::tlib
