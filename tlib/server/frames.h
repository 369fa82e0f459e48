// SPDX-License-Identifier: Apache-2.0
//
// Frames: the pool of a TermRegion's frames, and the budget D. Frames [0, limit) may be taken; when the limit falls,
// frames beyond it are retired as they are given back. Where the memory is:
//
//   dense    frame f has the memory f, committed in chunks before frames are taken. A chunk that is wholly beyond the
//            limit and unused gives its memory back.
//   sparse   a frame is a share of the budget only. Its memory is that of the page it is placed at, committed then, and
//            given back with the frame. No page has two frames: what one of them gave back would be the other's.
//
// Where clients READ frames by validation they have to know first (chunk_retirer.h): such a chunk is *retiring*, in
// rounds. BeginRetiring revokes what is retiring by then; EndRetiring, after the clients were told, gives the memory of
// those chunks back that still are. Between the two the limit may rise again, and keep a chunk.
//
//   none --Raise--> committed --unused beyond the limit--> retiring --EndRetiring of its round--> none
//                       ^-----------------Raise---------------'
//
// Memory comes slowly: the kernel clears it. Prepare has it ready before the limit rises, from a thread that may block,
// with the mutex not held and in such steps that others go on meanwhile; what it has prepared Raise finds committed.
//
// Thread-safety: any thread; SetLimit, Prepare and DropPrepared one caller at a time.
// Ownership:     a taken frame is the taker's until he gives it back.
// Errors:        ENOMEM from SetLimit: the memory cannot be had; the limit is then as far as it came.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "base/page.h"
#include "base/result.h"
#include "driver/nic.h"
#include "tlib/server/sparse_array.h"

namespace termfs::tlib::server {

class Frames {
 public:
  enum class Kind : uint8_t { kDense, kSparse };

  // `retire`: chunks are retiring; may be null. Called with the mutex not held, must not block.
  explicit Frames(driver::TermRegion& term, Kind kind = Kind::kDense, std::function<void()> retire = nullptr)
      : term_(term),
        kind_(kind),
        chunk_frames_(term.chunk_frames()),
        revokes_(term.keys(/*network=*/true).way == driver::ReadWay::kValidated),
        retire_(std::move(retire)),
        page_of_(kind == Kind::kSparse ? term.max_frames() : 0),
        placed_(kind == Kind::kSparse ? size_t{term.max_frames()} / 64 + 1 : 0) {}
  Frames(const Frames&) = delete;
  Frames& operator=(const Frames&) = delete;

  // `progress` is called after each chunk that was committed, with the mutex not held; may be null.
  Status SetLimit(uint32_t limit, const std::function<void()>& progress) EXCLUDES(mutex_);

  // Frames below `limit` get memory, which may take a while: a third of a CPU's time at most. ENOMEM: what it has
  // prepared is given back. `progress`: frames that have memory; may be null. Blocks.
  Status Prepare(uint32_t limit, const std::function<void(uint32_t frames)>& progress) EXCLUDES(mutex_);
  // What was prepared and is beyond the limit still goes.
  void DropPrepared() EXCLUDES(mutex_);
  // Frames that have memory, whether the limit is there already or not.
  uint32_t ready() const { return std::max(limit(), prepared_.load(std::memory_order_relaxed)); }

  // At opening, before the first SetLimit, which must include it: `frame` holds a page of an earlier server's. And
  // then: memory beyond the limit, or of no page, that is left of it goes back.
  void Adopt(driver::FrameIndex frame, PageIndex page) EXCLUDES(mutex_);
  void DecommitRest() EXCLUDES(mutex_);

  // The epoch in which all retiring chunks are revoked; 0: there are none. One caller at a time for these two.
  uint64_t BeginRetiring() EXCLUDES(mutex_);
  void EndRetiring() EXCLUDES(mutex_);
  uint32_t retiring() const { return retiring_.load(std::memory_order_relaxed); }

  std::optional<driver::FrameIndex> Take() EXCLUDES(mutex_);
  void Give(driver::FrameIndex frame) EXCLUDES(mutex_);

  // The taker will use it for that page, before he touches its bytes; where it has been another page's, that is hidden.
  // False: there is no memory, or another frame is placed there already.
  bool Place(driver::FrameIndex frame, PageIndex page);
  // What is in `from` is in `to` as well when this returns, and if there is but one memory for it, that is `to`'s then.
  void Copy(driver::FrameIndex from, driver::FrameIndex to);

  bool taken(driver::FrameIndex frame) const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return frame.value < taken_.size() && taken_[frame.value];
  }
  // Past the last frame that is taken.
  uint32_t taken_end() const EXCLUDES(mutex_);
  uint32_t limit() const { return limit_.load(std::memory_order_relaxed); }
  uint32_t free() const { return free_count_.load(std::memory_order_relaxed); }
  uint32_t used() const { return used_.load(std::memory_order_relaxed); }
  // REQUIRES: it is placed.
  std::byte* data(driver::FrameIndex frame) const {
    if (kind_ == Kind::kDense) [[likely]] {
      return term_.frame(frame);
    }
    return term_.frame({page_of_[frame.value].load(std::memory_order_relaxed) - 1});
  }

 private:
  struct Chunk {
    uint32_t taken = 0;  // frames
    bool committed = false;
    bool retiring = false;
    uint64_t round = 0;  // that has revoked it; 0: none yet
  };

  void Lower(uint32_t limit, const std::function<void()>& progress) EXCLUDES(mutex_);
  Status Raise(uint32_t limit, const std::function<void()>& progress) EXCLUDES(mutex_);
  uint32_t ChunkEnd(uint32_t chunk) const;
  uint32_t covered_chunks() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return static_cast<uint32_t>(chunks_.size());
  }
  // The vectors have items for these frames.
  void Cover(uint32_t frames) REQUIRES(mutex_);
  Status Commit(uint32_t chunk) REQUIRES(mutex_);
  // What Commit would do first, with the mutex not held meanwhile.
  Status PrepareChunk(uint32_t chunk) EXCLUDES(mutex_);
  // What is unused and beyond the limit. True: it retires.
  bool DecommitUnused(uint32_t chunk) REQUIRES(mutex_);
  void Decommit(uint32_t chunk) REQUIRES(mutex_);
  void Unplace(driver::FrameIndex frame);
  bool MarkPlaced(uint64_t page);
  void DecommitUnplaced();

  driver::TermRegion& term_;
  const Kind kind_;
  const uint32_t chunk_frames_;
  const bool revokes_;  // before memory goes
  const std::function<void()> retire_;
  // Sparse. Of a frame, by its taker: the page it is placed at, + 1, or 0. And bits of the pages that have one.
  const SparseArray<std::atomic<uint32_t>> page_of_;
  const SparseArray<std::atomic<uint64_t>> placed_;
  // Written under the mutex; read without it where a guess will do.
  std::atomic<uint32_t> limit_{0};
  std::atomic<uint32_t> prepared_{0};  // end of those that Prepare has seen to; 0: dropped
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
