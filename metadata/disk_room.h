// SPDX-License-Identifier: Apache-2.0
//
// DiskRoom: how much room is left where the store lies, what is free and what the reserve holds, so that operations are
// refused before the engine runs into a full disk in the middle of its log. What adds records needs more room than what
// changes them, and that more than what removes some: so a volume whose disk fills up can still be emptied.
//
// Thread-safety: any thread. It asks the file system at most every kFreshness.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "metadata/disk_reserve.h"

namespace termfs::metadata {

class DiskRoom {
 public:
  static constexpr std::chrono::milliseconds kFreshness{5};
  // Bytes that must be left.
  struct Needs {
    uint64_t growth = 0;    // beyond a full reserve, for what adds records: the engine writes its log a second time
    uint64_t changes = 0;   // for what changes records
    uint64_t removals = 0;  // for what removes more than it adds
  };

  // The reserve is borrowed.
  DiskRoom(std::string path, const Needs& needs, DiskReserve& reserve)
      : path_(std::move(path)), needs_(needs), reserve_(reserve) {}

  bool is_plentiful() const { return Left() >= 2 * needs_.growth + reserve_.full(); }
  Status CheckGrowth() const { return Check(needs_.growth + reserve_.full()); }  // ENOSPC
  Status CheckChange() const { return Check(needs_.changes); }                   // ENOSPC
  Status CheckRemoval() const { return Check(needs_.removals); }                 // ENOSPC
  // Fills the reserve, if what adds records can go on beside that.
  void FillReserve() const;
  // Gives up as much of the reserve as `bytes` of free room need.
  void MakeFree(uint64_t bytes) const;

 private:
  Status Check(uint64_t needed) const;
  uint64_t Free() const;
  uint64_t Left() const;

  const std::string path_;
  const Needs needs_;
  DiskReserve& reserve_;
  // Two threads may ask at once; either answer will do. They order nothing.
  mutable std::atomic<int64_t> next_look_{0};  // steady clock
  mutable std::atomic<uint64_t> free_{0};
};

}  // namespace termfs::metadata
