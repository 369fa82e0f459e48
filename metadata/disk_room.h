// SPDX-License-Identifier: Apache-2.0
//
// DiskRoom: how much is free where the store lies, so that operations are refused before the engine runs into a full
// disk in the middle of its log. What adds records needs more room than what frees or changes them; so a volume whose
// disk fills up can still be emptied.
//
// Thread-safety: any thread. It asks the file system at most every kFreshness.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace termfs::metadata {

class DiskRoom {
 public:
  static constexpr std::chrono::milliseconds kFreshness{5};

  // `for_growth`: bytes that must be free for what adds records: the engine may have as much in its log, and writes it
  // a second time. `for_changes`: for everything else.
  DiskRoom(std::string path, uint64_t for_growth, uint64_t for_changes)
      : path_(std::move(path)), for_growth_(for_growth), for_changes_(for_changes) {}

  bool is_plentiful() const { return Free() >= 2 * for_growth_; }
  Status CheckGrowth() const { return Check(for_growth_); }   // ENOSPC
  Status CheckChange() const { return Check(for_changes_); }  // ENOSPC

 private:
  Status Check(uint64_t needed) const;
  uint64_t Free() const;

  const std::string path_;
  const uint64_t for_growth_;
  const uint64_t for_changes_;
  // Two threads may ask at once; either answer will do. They order nothing.
  mutable std::atomic<int64_t> next_look_{0};  // steady clock
  mutable std::atomic<uint64_t> free_{0};
};

}  // namespace termfs::metadata
