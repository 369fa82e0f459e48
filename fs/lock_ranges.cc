// SPDX-License-Identifier: Apache-2.0
#include "fs/lock_ranges.h"

#include <algorithm>

#include "base/check.h"

namespace termfs::fs {

std::vector<LockRange>::const_iterator LockRanges::FirstReaching(uint64_t start) const {
  return std::lower_bound(ranges_.begin(), ranges_.end(), start,
                          [](const LockRange& range, uint64_t byte) { return range.end < byte; });
}

void LockRanges::Set(uint64_t start, uint64_t end, LockType type, uint32_t pid) {
  TERMFS_CHECK(start <= end && end <= kLastLockByte);
  // What overlaps or touches goes out, and comes back as far as it is not replaced.
  const auto first = ranges_.begin() + (FirstReaching(start == 0 ? 0 : start - 1) - ranges_.cbegin());
  auto last = first;
  LockRange fresh{.start = start, .end = end, .write = type == LockType::kWrite, .pid = pid};
  std::vector<LockRange> before;
  std::vector<LockRange> after;
  for (; last != ranges_.end() && last->start <= end + 1; ++last) {
    if (type != LockType::kUnlock && last->write == fresh.write && last->pid == pid) {
      fresh.start = std::min(fresh.start, last->start);
      fresh.end = std::max(fresh.end, last->end);
      continue;
    }
    if (last->start < start) {
      before.push_back({last->start, std::min(last->end, start - 1), last->write, last->pid});
    }
    if (last->end > end) {
      after.push_back({std::max(last->start, end + 1), last->end, last->write, last->pid});
    }
  }
  if (type != LockType::kUnlock) {
    before.push_back(fresh);
  }
  before.insert(before.end(), after.begin(), after.end());
  const auto at = ranges_.erase(first, last);
  ranges_.insert(at, before.begin(), before.end());
}

const LockRange* LockRanges::Conflict(uint64_t start, uint64_t end, bool write) const {
  for (auto range = FirstReaching(start); range != ranges_.end() && range->start <= end; ++range) {
    if (write || range->write) {
      return &*range;
    }
  }
  return nullptr;
}

bool LockRanges::Splits(uint64_t start, uint64_t end) const {
  const auto range = FirstReaching(start);
  return range != ranges_.end() && range->start < start && range->end > end;
}

}  // namespace termfs::fs
