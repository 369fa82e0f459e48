// SPDX-License-Identifier: Apache-2.0
//
// Frames: the dense pool of a TermRegion's frames, and the budget D. Frames [0, limit) may be taken; their memory is
// committed in chunks before they are. When the limit falls, frames beyond it are retired as they are given back, and a
// chunk that is wholly beyond it and unused gives its memory back.
//
// Where clients READ frames by validation they have to know first (chunk_retirer.h): such a chunk is *retiring*, in
// rounds. BeginRetiring revokes what is retiring by then; EndRetiring, after the clients were told, gives the memory of
// those chunks back that still are. Between the two the limit may rise again, and keep a chunk.
//
//   none --Raise--> committed --unused beyond the limit--> retiring --EndRetiring of its round--> none
//                       ^-----------------Raise---------------'
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
  // `retire`: chunks are retiring; may be null. Called with the mutex not held, must not block.
  explicit Frames(driver::TermRegion& term, std::function<void()> retire = nullptr)
      : term_(term),
        chunk_frames_(term.chunk_frames()),
        revokes_(term.keys(/*network=*/true).way == driver::ReadWay::kValidated),
        retire_(std::move(retire)) {}
  Frames(const Frames&) = delete;
  Frames& operator=(const Frames&) = delete;

  // `progress` is called after each chunk that was committed, with the mutex not held; may be null.
  Status SetLimit(uint32_t limit, const std::function<void()>& progress) EXCLUDES(mutex_);

  // At opening, before the first SetLimit, which must include it: `frame` holds a page of an earlier server's. And
  // then: memory beyond the limit that is left of it goes back.
  void Adopt(driver::FrameIndex frame) EXCLUDES(mutex_);
  void DecommitRest() EXCLUDES(mutex_);

  // The epoch in which all retiring chunks are revoked; 0: there are none. One caller at a time for these two.
  uint64_t BeginRetiring() EXCLUDES(mutex_);
  void EndRetiring() EXCLUDES(mutex_);
  uint32_t retiring() const { return retiring_.load(std::memory_order_relaxed); }

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
  struct Chunk {
    uint32_t taken = 0;  // frames
    bool committed = false;
    bool retiring = false;
    uint64_t round = 0;  // that has revoked it; 0: none yet
  };

  void Lower(uint32_t limit) EXCLUDES(mutex_);
  Status Raise(uint32_t limit, const std::function<void()>& progress) EXCLUDES(mutex_);
  uint32_t ChunkEnd(uint32_t chunk) const;
  // The vectors have items for these frames.
  void Cover(uint32_t frames) REQUIRES(mutex_);
  Status Commit(uint32_t chunk) REQUIRES(mutex_);
  // What is unused and beyond the limit. True: it retires.
  bool DecommitUnused(uint32_t chunk) REQUIRES(mutex_);
  void Decommit(uint32_t chunk) REQUIRES(mutex_);

  driver::TermRegion& term_;
  const uint32_t chunk_frames_;
  const bool revokes_;  // before memory goes
  const std::function<void()> retire_;
  // Written under the mutex; read without it where a guess will do.
  std::atomic<uint32_t> limit_{0};
  std::atomic<uint32_t> free_count_{0};
  std::atomic<uint32_t> used_{0};
  std::atomic<uint32_t> retiring_{0};  // chunks
  mutable Mutex mutex_;
  std::vector<uint32_t> free_ GUARDED_BY(mutex_);
  std::vector<bool> taken_ GUARDED_BY(mutex_);
  std::vector<Chunk> chunks_ GUARDED_BY(mutex_);
  uint64_t round_ GUARDED_BY(mutex_) = 0;
};

}  // namespace termfs::tlib::server
