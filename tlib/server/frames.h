// SPDX-License-Identifier: Apache-2.0
//
// Frames: the dense pool of a TermRegion's frames, and the budget D. Frames [0, limit) may be taken; their memory is
// committed in chunks before they are. When the limit falls, frames beyond it are retired as they are given back, and a
// chunk that is wholly beyond it and unused gives its memory back.
//
// Thread-safety: any thread; SetLimit one caller at a time.
// Ownership:     a taken frame is the taker's until he gives it back.
// Errors:        ENOMEM from SetLimit: the memory cannot be had; the limit is then as far as it came.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "driver/nic.h"

namespace termfs::tlib::server {

class Frames {
 public:
  explicit Frames(driver::TermRegion& term) : term_(term) {}
  Frames(const Frames&) = delete;
  Frames& operator=(const Frames&) = delete;

  // `progress` is called after each chunk that was committed, with the mutex not held; may be null.
  Status SetLimit(uint32_t limit, const std::function<void()>& progress) EXCLUDES(mutex_);

  // At opening, before the first SetLimit, which must include it: `frame` holds a page of an earlier server's. And
  // then: memory beyond the limit that is left of it goes back.
  void Adopt(driver::FrameIndex frame) EXCLUDES(mutex_);
  void DecommitRest() EXCLUDES(mutex_);

  std::optional<driver::FrameIndex> Take() EXCLUDES(mutex_);
  void Give(driver::FrameIndex frame) EXCLUDES(mutex_);

  bool taken(driver::FrameIndex frame) const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return frame.value < taken_.size() && taken_[frame.value];
  }
  uint32_t limit() const { return limit_.load(std::memory_order_relaxed); }
  uint32_t free() const { return free_count_.load(std::memory_order_relaxed); }
  uint32_t used() const { return used_.load(std::memory_order_relaxed); }
  std::byte* data(driver::FrameIndex frame) const { return term_.frame(frame); }

 private:
  static constexpr uint32_t kChunkFrames = 1024;  // 4 MiB

  void Lower(uint32_t limit) EXCLUDES(mutex_);
  Status Raise(uint32_t limit, const std::function<void()>& progress) EXCLUDES(mutex_);
  uint32_t ChunkEnd(uint32_t chunk) const;
  // The vectors have items for these frames.
  void Cover(uint32_t frames) REQUIRES(mutex_);
  void DecommitUnused(uint32_t chunk) REQUIRES(mutex_);

  driver::TermRegion& term_;
  // Written under the mutex; read without it where a guess will do.
  std::atomic<uint32_t> limit_{0};
  std::atomic<uint32_t> free_count_{0};
  std::atomic<uint32_t> used_{0};
  mutable Mutex mutex_;
  std::vector<uint32_t> free_ GUARDED_BY(mutex_);
  std::vector<bool> taken_ GUARDED_BY(mutex_);
  std::vector<uint32_t> taken_in_chunk_ GUARDED_BY(mutex_);
  std::vector<bool> committed_ GUARDED_BY(mutex_);  // by chunk
};

}  // namespace termfs::tlib::server
