// SPDX-License-Identifier: Apache-2.0
//
// SharedBlockDevice: an SSD with a volatile cache, in memory that processes share: it lives on when one that uses it is
// killed, as an SSD does. What was written is found by the next process; what was not flushed is lost, sector by sector
// as the seed decides, when LosePower says so.
//
// Thread-safety: any thread of one process at a time.
#pragma once

#include <sys/mman.h>

#include <cstring>
#include <memory>

#include "base/check.h"
#include "base/mutex.h"
#include "base/random.h"
#include "tlib/server/block_device.h"
#include "tlib/server/task.h"

namespace termfs::tlib::server {

// The medium and its cache. Made before the processes fork.
class SharedMedium {
 public:
  static constexpr uint64_t kSector = 512;
  // Filled with bytes that no test writes: another file's old bytes, so to speak.
  SharedMedium(uint64_t bytes, std::byte old_bytes) : bytes_(bytes) {
    const uint64_t all = 2 * bytes + bytes / kSector;
    void* const memory = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    TERMFS_CHECK(memory != MAP_FAILED);
    flushed_ = static_cast<std::byte*>(memory);
    cached_ = flushed_ + bytes;
    changed_ = cached_ + bytes;
    std::memset(flushed_, static_cast<int>(old_bytes), 2 * bytes);
  }
  ~SharedMedium() { munmap(flushed_, 2 * bytes_ + bytes_ / kSector); }
  SharedMedium(const SharedMedium&) = delete;
  SharedMedium& operator=(const SharedMedium&) = delete;

  uint64_t size() const { return bytes_; }
  std::byte* cached() { return cached_; }
  void NoteChanged(uint64_t sector) { changed_[sector] = std::byte{1}; }

  void Flush() {
    for (uint64_t sector = 0; sector < bytes_ / kSector; sector++) {
      if (changed_[sector] != std::byte{0}) {
        std::memcpy(flushed_ + sector * kSector, cached_ + sector * kSector, kSector);
        changed_[sector] = std::byte{0};
      }
    }
  }
  void LosePower(Random& random) {
    for (uint64_t sector = 0; sector < bytes_ / kSector; sector++) {
      if (changed_[sector] != std::byte{0} && random.Below(2) == 0) {
        std::memcpy(cached_ + sector * kSector, flushed_ + sector * kSector, kSector);
      }
    }
    Flush();  // what was not lost is there for good
  }

 private:
  const uint64_t bytes_;
  std::byte* flushed_;
  std::byte* cached_;   // what reads return
  std::byte* changed_;  // one per sector: since the last flush
};

class SharedBlockDevice final : public BlockDevice {
 public:
  explicit SharedBlockDevice(SharedMedium& medium) : medium_(medium) {}
  uint64_t size() const override { return medium_.size(); }
  uint32_t alignment() const override { return 4096; }

  void Run(std::span<BlockIo> ios) override {
    YieldInTask();  // others come in between, as on a real device
    for (BlockIo& io : ios) {
      io.status = RunOne(io);
    }
    YieldInTask();
  }
  Status Flush() override {
    YieldInTask();
    MutexLock lock(mutex_);
    medium_.Flush();
    return Status::Ok();
  }

 private:
  static void YieldInTask() {
    if (Task::InTask()) {
      Task::Yield();
    }
  }
  Status RunOne(const BlockIo& io) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    uint64_t at = io.offset;
    for (const iovec& piece : io.pieces) {
      if (at + piece.iov_len > size()) {
        return Status::Error(EIO, "access beyond the end of the device");
      }
      if (io.kind == BlockIo::Kind::kRead) {
        std::memcpy(piece.iov_base, medium_.cached() + at, piece.iov_len);
      } else {
        for (uint64_t sector = at / SharedMedium::kSector; sector < (at + piece.iov_len) / SharedMedium::kSector;
             sector++) {
          medium_.NoteChanged(sector);  // before: a death in the middle leaves what may be lost
        }
        std::memcpy(medium_.cached() + at, piece.iov_base, piece.iov_len);
      }
      at += piece.iov_len;
    }
    return Status::Ok();
  }

  SharedMedium& medium_;
  Mutex mutex_;
};

}  // namespace termfs::tlib::server
