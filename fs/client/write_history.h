// SPDX-License-Identifier: Apache-2.0
//
// WriteHistory: of one inode, whether everything that this client has written is durable, and whether any of it was
// lost with the memory of a server. A loss is told once to each file that was open then; when none was, to the first
// that is opened and asks. See "A lost write is told".
//
// Thread-safety: any thread; a `told` is used under the history's lock only.
#pragma once

#include <cstdint>

#include "base/mutex.h"

namespace termfs::fs::client {

class WriteHistory {
 public:
  // A write has returned, which a session of that generation carried out.
  void Wrote(uint64_t generation) EXCLUDES(mutex_);
  // What has been written by now; with it Synced says that this is durable.
  uint64_t Mark() const EXCLUDES(mutex_);
  void Synced(uint64_t mark) EXCLUDES(mutex_);
  // What sessions before that generation wrote, and nobody has synced, is gone.
  void Lose(uint64_t generation) EXCLUDES(mutex_);
  // A write that had returned could not be carried out.
  void LoseOne() EXCLUDES(mutex_);

  // The losses that a file which is opened now need not be told of.
  uint32_t Told() const EXCLUDES(mutex_);
  // Whether `told` lags behind, which it does not any more.
  bool Tell(uint32_t& told) EXCLUDES(mutex_);

  // Nothing in it matters to anybody who opens the inode later.
  bool settled() const EXCLUDES(mutex_);

 private:
  void AddLoss() REQUIRES(mutex_);

  mutable Mutex mutex_;
  uint64_t written_ GUARDED_BY(mutex_) = 0;
  uint64_t synced_ GUARDED_BY(mutex_) = 0;
  uint64_t lost_before_ GUARDED_BY(mutex_) = 0;  // generation
  uint32_t losses_ GUARDED_BY(mutex_) = 0;
  bool told_ GUARDED_BY(mutex_) = true;  // somebody, of the last loss
};

}  // namespace termfs::fs::client
