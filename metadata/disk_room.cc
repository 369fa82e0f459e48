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

uint64_t DiskRoom::Left() const {
  const uint64_t free = Free();
  const uint64_t held = reserve_.held();
  return free > std::numeric_limits<uint64_t>::max() - held ? free : free + held;
}

Status DiskRoom::Check(uint64_t needed) const {
  if (Left() >= needed) {
    return Status::Ok();
  }
  return Status::Error(ENOSPC, "the disk of " + path_ + " has " + std::to_string(Free() >> 20) + " MiB free and " +
                                   std::to_string(reserve_.held() >> 20) + " MiB in reserve, " +
                                   std::to_string(needed >> 20) + " MiB are kept for the metadata");
}

void DiskRoom::FillReserve() const {
  if (reserve_.held() < reserve_.full() && CheckGrowth().ok()) {
    reserve_.Fill();
    next_look_.store(0, std::memory_order_relaxed);
  }
}

void DiskRoom::MakeFree(uint64_t bytes) const {
  next_look_.store(0, std::memory_order_relaxed);
  if (const uint64_t free = Free(); free < bytes) {
    reserve_.GiveUp(bytes - free);
    next_look_.store(0, std::memory_order_relaxed);
  }
}

}  // namespace termfs::metadata
