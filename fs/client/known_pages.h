// SPDX-License-Identifier: Apache-2.0
//
// KnownPages: of which contents of a file the pages are that the kernel may still have of it from an earlier open. The
// time of change tells contents apart: the server moves it with every change, and nobody can set it. So when it is at
// an open what it was at the open before, all that was read since is still what the file holds. See "Pages under a
// lease".
//
// Also which files others change all the time: for those a kernel that keeps pages costs more than it saves.
//
// Remembers the last few ten thousand files; of others nothing is known.
//
// Thread-safety: any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "base/mutex.h"

namespace termfs::fs::client {

class KnownPages {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // It was opened to be cached: `ctime` as it was then, in the session of that generation. True: nothing has changed
  // since the open before.
  bool Opened(uint64_t ino, int64_t ctime, uint64_t generation) EXCLUDES(mutex_);
  // Somebody else is about to change it.
  void Dropped(uint64_t ino, TimePoint now) EXCLUDES(mutex_);
  // That has happened often lately.
  bool Contended(uint64_t ino, TimePoint now) EXCLUDES(mutex_);

 private:
  static constexpr size_t kMost = 32768;  // and as many again, older ones
  static constexpr uint32_t kOften = 4;
  static constexpr std::chrono::seconds kLately{10};
  struct Known {
    int64_t ctime = 0;
    uint64_t generation = 0;  // 0: nothing is known
    uint32_t drops = 0;
    TimePoint last_drop{};
  };
  Known& Of(uint64_t ino) REQUIRES(mutex_);

  Mutex mutex_;
  std::unordered_map<uint64_t, Known> recent_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Known> earlier_ GUARDED_BY(mutex_);
};

}  // namespace termfs::fs::client
