// SPDX-License-Identifier: Apache-2.0
//
// FakeBlockDevice: an SSD in memory with a volatile cache. What was not flushed is lost in a crash, page by page as the
// seed decides; a page that is being written then may be torn. Errors are injected, latency is given by hand: while
// `Hold` is on, accesses wait until `LetGo`.
//
// The medium outlives the device (FakeMedium), so a test crashes one device and opens another on the same medium.
//
// Thread-safety: any thread.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "base/page.h"
#include "base/random.h"
#include "tlib/server/block_device.h"
#include "tlib/server/task.h"

namespace termfs::tlib::server {

// What survives a crash.
class FakeMedium {
 public:
  // Filled with bytes that no test writes: another file's old bytes, so to speak.
  FakeMedium(uint64_t bytes, std::byte old_bytes) : bytes_(bytes, old_bytes) {}
  std::vector<std::byte> bytes_;
};

class FakeBlockDevice final : public BlockDevice {
 public:
  explicit FakeBlockDevice(std::shared_ptr<FakeMedium> medium, uint32_t alignment = 4096)
      : medium_(std::move(medium)), alignment_(alignment) {}

  // Returns an errno for an access that shall fail (0: it shall not).
  using Fault = std::function<int(const BlockIo&)>;
  void InjectFault(Fault fault) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    fault_ = std::move(fault);
  }
  void FailFlushes(int error) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    flush_error_ = error;
  }

  void Hold() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    held_ = true;
  }
  // Flushes only.
  void HoldFlushes() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    flushes_held_ = true;
  }
  void LetGo() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    held_ = flushes_held_ = false;
    for (Task* task : waiting_) {
      task->Unpark();
    }
    waiting_.clear();
  }
  size_t waiting() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return waiting_.size();
  }
  uint64_t reads() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return reads_;
  }
  uint64_t writes() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return writes_;
  }
  uint64_t flushes() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return flushes_;
  }

  // Power loss: each sector of what was not flushed reaches the medium or does not. Later accesses fail.
  void Crash(Random& random) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (const auto& [sector, bytes] : unflushed_) {
      if (random.Below(2) == 0) {
        std::memcpy(medium_->bytes_.data() + sector * kSector, bytes.data(), kSector);
      }
    }
    unflushed_.clear();
    crashed_ = true;
  }

  uint64_t size() const override { return medium_->bytes_.size(); }
  uint32_t alignment() const override { return alignment_; }

  void Run(std::span<BlockIo> ios) override {
    if (Task::InTask()) {
      Task::Yield();  // others come in between, as on a real device
      WaitWhileHeld(/*flush=*/false);
    }
    for (BlockIo& io : ios) {
      io.status = RunOne(io);
    }
    if (Task::InTask()) {
      Task::Yield();
    }
  }

  Status Flush() override {
    if (Task::InTask()) {
      Task::Yield();
      WaitWhileHeld(/*flush=*/true);
    }
    MutexLock lock(mutex_);
    flushes_++;
    if (crashed_ || flush_error_ != 0) {
      return Status::Error(crashed_ ? EIO : flush_error_, "injected: flush");
    }
    for (const auto& [sector, bytes] : unflushed_) {
      std::memcpy(medium_->bytes_.data() + sector * kSector, bytes.data(), kSector);
    }
    unflushed_.clear();
    return Status::Ok();
  }

 private:
  static constexpr uint64_t kSector = 512;
  using Sector = std::vector<std::byte>;

  void WaitWhileHeld(bool flush) EXCLUDES(mutex_) {
    mutex_.Lock();
    while (held_ || (flush && flushes_held_)) {
      waiting_.push_back(&Task::Current());
      mutex_.Unlock();
      Task::Park();
      mutex_.Lock();
      std::erase(waiting_, &Task::Current());
    }
    mutex_.Unlock();
  }

  Status RunOne(BlockIo& io) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    TERMFS_CHECK(io.offset % alignment_ == 0 && io.pieces.size() <= kMaxPieces && !io.pieces.empty());
    (io.kind == BlockIo::Kind::kRead ? reads_ : writes_)++;
    const int error = crashed_ ? EIO : fault_ ? fault_(io) : 0;
    if (error != 0) {
      return Status::Error(error, "injected: device error");
    }
    uint64_t at = io.offset;
    for (const iovec& piece : io.pieces) {
      TERMFS_CHECK(piece.iov_len % alignment_ == 0);
      TERMFS_CHECK(reinterpret_cast<uintptr_t>(piece.iov_base) % std::min(alignment_, 512U) == 0);
      if (at + piece.iov_len > size()) {
        return Status::Error(EIO, "access beyond the end of the device");
      }
      Move(io.kind, at, static_cast<std::byte*>(piece.iov_base), piece.iov_len);
      at += piece.iov_len;
    }
    return Status::Ok();
  }

  // A device reads a frame while a writer may change it (the page is redirtied then and written again): not a data race
  // to be reported.
#if defined(__clang__)
  __attribute__((no_sanitize("thread"), noinline))
#endif
  static void
  Dma(std::byte* to, const std::byte* from, uint64_t length) {
    for (uint64_t i = 0; i < length; i++) {
      static_cast<volatile std::byte*>(to)[i] = static_cast<const volatile std::byte*>(from)[i];
    }
  }

  void Move(BlockIo::Kind kind, uint64_t at, std::byte* memory, uint64_t length) REQUIRES(mutex_) {
    while (length > 0) {
      const uint64_t sector = at / kSector;
      const uint64_t begin = at % kSector;
      const uint64_t part = std::min(length, kSector - begin);
      const auto found = unflushed_.find(sector);
      if (kind == BlockIo::Kind::kRead) {
        const std::byte* from =
            found != unflushed_.end() ? found->second.data() : medium_->bytes_.data() + sector * kSector;
        std::memcpy(memory, from + begin, part);
      } else {
        Sector& cached = unflushed_[sector];
        if (cached.empty()) {
          const auto old = medium_->bytes_.begin() + static_cast<ptrdiff_t>(sector * kSector);
          cached.assign(old, old + kSector);
        }
        Dma(cached.data() + begin, memory, part);
      }
      at += part;
      memory += part;
      length -= part;
    }
  }

  const std::shared_ptr<FakeMedium> medium_;
  const uint32_t alignment_;
  mutable Mutex mutex_;
  std::map<uint64_t, Sector> unflushed_ GUARDED_BY(mutex_);
  Fault fault_ GUARDED_BY(mutex_);
  int flush_error_ GUARDED_BY(mutex_) = 0;
  bool crashed_ GUARDED_BY(mutex_) = false;
  bool held_ GUARDED_BY(mutex_) = false;
  bool flushes_held_ GUARDED_BY(mutex_) = false;
  std::vector<Task*> waiting_ GUARDED_BY(mutex_);
  uint64_t reads_ GUARDED_BY(mutex_) = 0;
  uint64_t writes_ GUARDED_BY(mutex_) = 0;
  uint64_t flushes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace termfs::tlib::server
