// SPDX-License-Identifier: Apache-2.0
//
// ContendedDirectories: directories whose names are changed by one session and listed by others so much that the
// changes spend their time on recalls. For a moment the others are not granted what the next change would only recall:
// the directory's attributes, and the entries of a listing. See "A directory that others change".
//
// A directory becomes contended when kLeastRecalls changes, or more, in at most kWindow have waited for recalls for
// kShare of the time. The share, not a rate, because each recall slows the next change down. It stays so for kHold.
// Then leases are granted again, and the next changes show what they cost; if it is contended again soon, it stays so
// for twice as long as before, up to kLongestHold.
//
// Only costs depend on it, so it may forget: of directories with the same slot it knows the latest.
//
// Thread-safety: any thread.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/clock.h"
#include "base/mutex.h"

namespace termfs::fs::server {

class ContendedDirectories {
 public:
  static constexpr unsigned kLeastRecalls = 8;  // few are cheap, and may be slow because the network is
  static constexpr Nanoseconds kWindow = std::chrono::seconds(1);
  static constexpr int kShare = 4;  // a quarter
  static constexpr Nanoseconds kHold = std::chrono::seconds(1);
  static constexpr Nanoseconds kLongestHold = std::chrono::seconds(8);

  // A change of a name in `directory` by `session` has recalled something, and waited from `begin` to `end` for that.
  void NoteRecall(uint64_t directory, uint64_t session, BootTime begin, BootTime end) EXCLUDES(mutex_);
  // Whether others than `session` change the directory so.
  bool IsContended(uint64_t directory, uint64_t session, BootTime now) const EXCLUDES(mutex_);

 private:
  struct Slot {
    uint64_t directory = 0;
    uint64_t writer = 0;  // 0: several sessions
    BootTime since{};     // of the first recall that counts
    unsigned recalls = 0;
    Nanoseconds waited{0};
    BootTime until{};     // contended
    Nanoseconds hold{0};  // how long it was
  };
  static size_t IndexOf(uint64_t directory) { return directory % kSlots; }

  static constexpr size_t kSlots = 1024;
  std::atomic<int64_t> latest_{0};  // end of all `until`, in nanoseconds; mostly past, so that a look needs no lock
  mutable Mutex mutex_;
  std::array<Slot, kSlots> slots_ GUARDED_BY(mutex_);
};

}  // namespace termfs::fs::server
