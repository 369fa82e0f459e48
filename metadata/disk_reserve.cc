// SPDX-License-Identifier: Apache-2.0
#include "metadata/disk_reserve.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace termfs::metadata {

namespace {

constexpr std::chrono::minutes kBetweenTries{1};  // to fill it, which is wished for at each sync

UniqueFd OpenReserve(const std::string& path, int flags) {
  return UniqueFd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600));
}

}  // namespace

DiskReserve::DiskReserve(std::string path, uint64_t bytes) : path_(std::move(path)), full_(bytes) {
  if (full_ == 0) {
    return;
  }
  MutexLock lock(mutex_);
  fd_ = OpenReserve(path_, 0);
  Measure();
}

void DiskReserve::Measure() {
  constexpr uint64_t kSector = 512;
  struct stat found {};
  const bool known = fd_.valid() && fstat(fd_.get(), &found) == 0;
  // A copy of the file may have its length without its blocks.
  held_.store(
      known ? std::min<uint64_t>(static_cast<uint64_t>(found.st_size), static_cast<uint64_t>(found.st_blocks) * kSector)
            : 0,
      std::memory_order_relaxed);
}

bool DiskReserve::GiveUp(uint64_t bytes) {
  MutexLock lock(mutex_);
  const uint64_t had = held();
  if (had == 0) {
    return false;
  }
  const uint64_t left = had - std::min(had, bytes);
  if (ftruncate(fd_.get(), static_cast<off_t>(left)) != 0) {
    LOG_WARNING("{}: give up {} bytes of the reserve: {}", path_, bytes, std::strerror(errno));
    return false;
  }
  Measure();
  return held() < had;
}

void DiskReserve::Fill() {
  MutexLock lock(mutex_);
  if (held() >= full_ || unsupported_) {
    return;
  }
  if (!fd_.valid()) {
    fd_ = OpenReserve(path_, O_CREAT);
  }
  if (std::chrono::steady_clock::now() < next_try_) {
    return;
  }
  const off_t have = static_cast<off_t>(held());
  // Also the blocks of a hole are allocated. What could not be had in full is not kept in part.
  if (!fd_.valid() || fallocate(fd_.get(), 0, 0, static_cast<off_t>(full_)) != 0) {
    const int error = errno;
    unsupported_ = error == EOPNOTSUPP;
    LOG_WARNING("{}: no room is kept in reserve for a full disk: {}", path_, std::strerror(error));
    if (fd_.valid() && ftruncate(fd_.get(), have) != 0) {
      LOG_WARNING("{}: cut the reserve: {}", path_, std::strerror(errno));
    }
  }
  Measure();
  if (held() < full_) {
    next_try_ = std::chrono::steady_clock::now() + kBetweenTries;
  }
}

}  // namespace termfs::metadata
