// SPDX-License-Identifier: Apache-2.0
//
// LockRanges: what one owner has locked of one file, as fcntl(2) has it: a later lock replaces an earlier one where
// they overlap, and what touches and is alike is one range.
//
// Invariant: ranges ascend, do not overlap, and no two that touch have the same type and process.
//
// Thread-safety: none; guarded by whoever has it.
// Units:         bytes; `end` is the last byte of a range, not the one behind it.
#pragma once

#include <cstdint>
#include <vector>

namespace termfs::fs {

inline constexpr uint64_t kLastLockByte = (uint64_t{1} << 63) - 1;  // a lock "to the end of the file" ends here

enum class LockType : uint8_t { kRead, kWrite, kUnlock };  // the numbers of F_RDLCK, F_WRLCK and F_UNLCK

struct LockRange {
  uint64_t start = 0;
  uint64_t end = 0;
  bool write = false;
  uint32_t pid = 0;  // for F_GETLK
  bool operator==(const LockRange&) const = default;
};

class LockRanges {
 public:
  // REQUIRES: start <= end <= kLastLockByte.
  void Set(uint64_t start, uint64_t end, LockType type, uint32_t pid);
  // The first that whoever asks for this may not have beside it; null: none. Another owner asks.
  const LockRange* Conflict(uint64_t start, uint64_t end, bool write) const;
  // Whether a range begins before and ends behind it: to unlock it makes one range more.
  bool Splits(uint64_t start, uint64_t end) const;
  const std::vector<LockRange>& all() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }

 private:
  std::vector<LockRange>::const_iterator FirstReaching(uint64_t start) const;
  std::vector<LockRange> ranges_;
};

}  // namespace termfs::fs
