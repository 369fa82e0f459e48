// SPDX-License-Identifier: Apache-2.0
#include "fs/server/capacity.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/log.h"
#include "base/page.h"

namespace termfs::fs::server {

namespace {

constexpr uint64_t kMetadataReserve = uint64_t{64} << 20;  // of the disk that the metadata is on, stays free

std::string Mebibytes(uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace

uint64_t Capacity::target_pages() const {
  const uint64_t target = target_.load(std::memory_order_relaxed);
  return target != 0 ? target : pages();
}

Status Capacity::Set(uint64_t pages) {
  const uint64_t before = this->pages();
  if (pages == before) {
    return Status::Ok();
  }
  if (pages < before) {
    return Status::Error(ENOTSUP, "the capacity is " + std::to_string(before << kPageBits) +
                                      " bytes; shrinking is not supported while the volume is served");
  }
  target_.store(pages, std::memory_order_relaxed);
  Status grown = Grow(pages);
  target_.store(0, std::memory_order_relaxed);
  if (grown.ok()) {
    LOG_INFO("the capacity is {} bytes now", pages << kPageBits);
  }
  return grown;
}

// First everything that serves pages; then the settings; then the superblock, which decides, and from which moment on
// the pages are given to files.
Status Capacity::Grow(uint64_t pages) {
  const uint64_t before = this->pages();
  RETURN_IF_ERROR(CheckDisk((pages - before) << kPageBits));
  RETURN_IF_ERROR(server_.Grow(pages));
  Status noted = note_(pages);
  if (noted.ok()) {
    noted = names_.Grow(pages);
  }
  if (!noted.ok()) {
    for (const Status& undone : {note_(before), server_.Shrink(before)}) {
      if (!undone.ok()) {
        LOG_WARNING("after a growth that failed: {}", undone.ToString());
      }
    }
    return noted;
  }
  return names_.Sync();
}

// A file of the region shares its disk with the metadata, mostly.
Status Capacity::CheckDisk(uint64_t more_bytes) const {
  struct stat device {};
  struct stat meta {};
  struct statvfs space {};
  if (stat(device_.c_str(), &device) != 0 || stat(meta_.c_str(), &meta) != 0 || statvfs(device_.c_str(), &space) != 0) {
    return ErrnoStatus("examine " + device_);
  }
  if (!S_ISREG(device.st_mode)) {
    return Status::Ok();
  }
  const unsigned __int128 free = static_cast<unsigned __int128>(space.f_bavail) * space.f_frsize;
  const uint64_t needed = more_bytes + (device.st_dev == meta.st_dev ? kMetadataReserve : 0);
  if (free < needed) {
    return Status::Error(ENOSPC, device_ + ": " + Mebibytes(needed) + " more are needed on its disk, which has " +
                                     Mebibytes(static_cast<uint64_t>(free)) + " free");
  }
  return Status::Ok();
}

}  // namespace termfs::fs::server
