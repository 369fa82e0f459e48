// SPDX-License-Identifier: Apache-2.0
//
// KnownDirectories: the directories that the kernel knows from look-ups, with the attributes that it was last given. A
// directory that has been removed is gone at the server unless it is open, but it may be somebody's working directory:
// then the kernel goes on asking for it, and is answered from here. See "A removed directory".
//
// Thread-safety: any thread. Memory: about 150 bytes for each directory that the kernel has not forgotten.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "base/mutex.h"
#include "fs/client/file_system.h"
#include "fs/types.h"

namespace termfs::mount {

class KnownDirectories {
 public:
  // Before the kernel gets an entry of the directory: one more look-up.
  void LookedUp(const fs::Attributes& directory) EXCLUDES(mutex_);
  // The kernel gives back `count` look-ups of an inode of any type.
  void Forget(uint64_t ino, uint64_t count) EXCLUDES(mutex_);
  // The attributes of an inode of any type have been read.
  void Seen(const fs::Attributes& attributes) EXCLUDES(mutex_);

  // Of a directory that the server does not have any more, as it is once removed: without links, and empty. Nothing:
  // the kernel does not know it, or it is no directory.
  std::optional<fs::Attributes> Removed(uint64_t ino) const EXCLUDES(mutex_);
  // Changes these attributes, for this mount.
  std::optional<fs::Attributes> SetRemoved(uint64_t ino, const fs::client::SetAttributes& what, int64_t now)
      EXCLUDES(mutex_);

 private:
  struct Directory {
    fs::Attributes attributes;
    uint64_t lookups = 0;
  };

  mutable Mutex mutex_;
  std::unordered_map<uint64_t, Directory> directories_ GUARDED_BY(mutex_);  // by inode
};

}  // namespace termfs::mount
