// SPDX-License-Identifier: Apache-2.0
#include "metadata/disk_room.h"

#include <sys/statvfs.h>

#include <limits>

namespace termfs::metadata {

uint64_t DiskRoom::Free() const {
  using std::chrono::steady_clock;
  const int64_t now = steady_clock::now().time_since_epoch().count();
  if (now >= next_look_.load(std::memory_order_relaxed)) {
    struct statvfs use {};
    // A file system that does not answer shows it on writing.
    const bool answered = statvfs(path_.c_str(), &use) == 0;
    free_.store(answered ? uint64_t{use.f_bavail} * use.f_frsize : std::numeric_limits<uint64_t>::max(),
                std::memory_order_relaxed);
    next_look_.store(now + std::chrono::duration_cast<steady_clock::duration>(kFreshness).count(),
                     std::memory_order_relaxed);
  }
  return free_.load(std::memory_order_relaxed);
}

Status DiskRoom::Check(uint64_t needed) const {
  const uint64_t free = Free();
  if (free >= needed) {
    return Status::Ok();
  }
  return Status::Error(ENOSPC, "the disk of " + path_ + " has " + std::to_string(free >> 20) + " MiB free, " +
                                   std::to_string(needed >> 20) + " are kept for the metadata");
}

}  // namespace termfs::metadata
