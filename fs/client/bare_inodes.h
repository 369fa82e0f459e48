// SPDX-License-Identifier: Apache-2.0
//
// BareInodes: inodes that have no extended attributes, so that this client answers itself when it is asked for one. `ls
// -l` asks for two of each file, which hardly any file has.
//
// It rests on the grant of the inode's attributes, of which every reply says whether there are extended ones: who sets
// one from elsewhere recalls those, and waits for the answer. While this client sets one itself, nothing is known.
//
// Thread-safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>

#include "base/clock.h"
#include "base/mutex.h"
#include "fs/client/kept_by_kernel.h"
#include "fs/types.h"

namespace termfs::fs::client {

class BareInodes {
 public:
  // What the attributes say that the last reply of that lane has granted, if it has.
  void Seen(const Attributes& attributes, const LaneGrants& grants) EXCLUDES(mutex_);
  // It has none now.
  bool Contains(uint64_t ino) EXCLUDES(mutex_);
  // Its attributes are granted no longer: after that was counted as a recall, and before it is answered.
  void Forget(uint64_t ino) EXCLUDES(mutex_);
  void ForgetAll() EXCLUDES(mutex_);

  // Around the request that may set or remove one.
  void BeginChange(uint64_t ino) EXCLUDES(mutex_);
  void EndChange(uint64_t ino) EXCLUDES(mutex_);

 private:
  static constexpr size_t kMost = size_t{1} << 15;  // and as many again, older ones
  void Erase(uint64_t ino) REQUIRES(mutex_);

  Mutex mutex_;
  std::unordered_map<uint64_t, BootTime> recent_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, BootTime> earlier_ GUARDED_BY(mutex_);
  std::unordered_multiset<uint64_t> changing_ GUARDED_BY(mutex_);
};

}  // namespace termfs::fs::client
