// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/mapping.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace termfs::driver::softnic {
namespace {

Status CheckSafe(int fd, const struct statx& info, size_t bytes, MappedKind kind) {
  if (info.stx_uid != 0 && info.stx_uid != geteuid()) {
    return Status::Error(EPROTO, "the peer's memory belongs to user " + std::to_string(info.stx_uid) +
                                     ", not to root or the user of this process");
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  const bool private_file = S_ISREG(info.stx_mode) && (info.stx_mode & 0077) == 0 && info.stx_nlink <= 1;
  if ((seals < 0 || (seals & F_SEAL_SHRINK) == 0) && !(kind == MappedKind::kRegion && private_file)) {
    return Status::Error(EPROTO, "the peer's memory is not sealed against shrinking");
  }
  struct statfs fs {};
  // Huge-page memory has seals too, but touching it may fail.
  if (fstatfs(fd, &fs) != 0 || fs.f_type != TMPFS_MAGIC) {
    return Status::Error(EPROTO, "the peer's memory is not plain shared memory");
  }
  if (info.stx_size < bytes || bytes == 0) {
    return Status::Error(EPROTO, "the peer's memory is smaller than it says");
  }
  return Status::Ok();
}

}  // namespace

Mapping::~Mapping() { munmap(data_, size_); }

void Mapping::LetGo() const { madvise(data_, size_, MADV_DONTNEED); }  // of shared memory: the page tables only

Result<std::shared_ptr<Mapping>> MappingCache::Map(const UniqueFd& fd, size_t bytes, MappedKind kind) {
  struct statx info {};
  if (statx(fd.get(), "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &info) != 0) {
    return ErrnoStatus("examine the peer's memory");
  }
  RETURN_IF_ERROR(CheckSafe(fd.get(), info, bytes, kind));
  const bool writable = kind == MappedKind::kSealedToWrite;
  const Key key{(uint64_t{info.stx_dev_major} << 32) | info.stx_dev_minor, info.stx_ino,
                info.stx_btime.tv_sec * 1'000'000'000 + info.stx_btime.tv_nsec, writable};
  MutexLock lock(mutex_);
  if (std::shared_ptr<Mapping> known = mappings_[key].lock(); known && known->size() >= bytes) {
    return known;
  }
  void* mapped = mmap(nullptr, info.stx_size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd.get(), 0);
  if (mapped == MAP_FAILED) {
    mappings_.erase(key);
    return ErrnoStatus("map the peer's memory");
  }
  auto mapping = std::make_shared<Mapping>(static_cast<std::byte*>(mapped), info.stx_size);
  std::erase_if(mappings_, [](const auto& entry) { return entry.second.expired(); });
  mappings_[key] = mapping;
  return mapping;
}

}  // namespace termfs::driver::softnic
