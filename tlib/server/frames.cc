// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/frames.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <thread>
#include <utility>

#include "base/check.h"

namespace termfs::tlib::server {
namespace {

constexpr std::chrono::milliseconds kLongestPause{50};  // between two chunks that are prepared

std::chrono::nanoseconds ThreadTime() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

void Frames::Cover(uint32_t frames) {
  const uint32_t chunks = frames / chunk_frames_ + (frames % chunk_frames_ != 0 ? 1 : 0);
  if (chunks > chunks_.size()) {
    taken_.resize(ChunkEnd(chunks - 1));
    chunks_.resize(chunks);
  }
}

uint32_t Frames::ChunkEnd(uint32_t chunk) const {
  return static_cast<uint32_t>(std::min<uint64_t>(uint64_t{chunk + 1} * chunk_frames_, term_.max_frames()));
}

Status Frames::SetLimit(uint32_t limit, const std::function<void()>& progress) {
  if (limit > term_.max_frames()) {
    return Status::Error(EINVAL, "more frames than the region can have");
  }
  if (limit < this->limit()) {
    Lower(limit, progress);
    return Status::Ok();
  }
  return Raise(limit, progress);
}

void Frames::Adopt(driver::FrameIndex frame, PageIndex page) {
  if (kind_ == Kind::kSparse) {
    MarkPlaced(page.value);
    page_of_[frame.value].store(static_cast<uint32_t>(page.value) + 1, std::memory_order_relaxed);
  }
  MutexLock lock(mutex_);
  Cover(frame.value + 1);
  TERMFS_CHECK(limit() == 0 && !taken_[frame.value]);
  taken_[frame.value] = true;
  chunks_[frame.value / chunk_frames_].taken++;
  used_.fetch_add(1, std::memory_order_relaxed);
}

void Frames::DecommitRest() {
  if (kind_ == Kind::kSparse) {
    DecommitUnplaced();
    return;
  }
  MutexLock lock(mutex_);
  for (uint32_t chunk = 0; chunk < chunks_.size(); chunk++) {
    if (!chunks_[chunk].committed) {
      const uint32_t first = chunk * chunk_frames_;
      term_.Decommit({first}, ChunkEnd(chunk) - first);
    }
  }
  const auto covered = static_cast<uint32_t>(taken_.size());
  term_.Decommit({covered}, term_.max_frames() - covered);
}

void Frames::Lower(uint32_t limit, const std::function<void()>& progress) {
  bool retires = false;
  const uint32_t old_limit = this->limit();
  {
    MutexLock lock(mutex_);
    limit_.store(limit, std::memory_order_relaxed);
    std::erase_if(free_, [limit](uint32_t frame) { return frame >= limit; });
    free_count_.store(static_cast<uint32_t>(free_.size()), std::memory_order_relaxed);
  }
  for (uint32_t chunk = limit / chunk_frames_; chunk * chunk_frames_ < old_limit; chunk++) {
    {
      MutexLock lock(mutex_);  // giving memory back takes a while, and others want frames
      retires |= chunk < chunks_.size() && DecommitUnused(chunk);
    }
    if (progress) {
      progress();
    }
  }
  if (retires && retire_) {
    retire_();
  }
}

Status Frames::Raise(uint32_t limit, const std::function<void()>& progress) {
  while (this->limit() < limit) {
    const uint32_t begin = this->limit();
    const uint32_t chunk = begin / chunk_frames_;
    const uint32_t end = std::min(limit, ChunkEnd(chunk));
    {
      MutexLock lock(mutex_);
      Cover(end);
      if (kind_ == Kind::kDense) {
        RETURN_IF_ERROR(Commit(chunk));
      }
      for (uint32_t frame = end; frame-- > begin;) {  // low numbers are taken first
        if (!taken_[frame]) {
          free_.push_back(frame);
        }
      }
      free_count_.store(static_cast<uint32_t>(free_.size()), std::memory_order_relaxed);
      limit_.store(end, std::memory_order_relaxed);
    }
    if (progress) {
      progress();
    }
  }
  return Status::Ok();
}

Status Frames::Prepare(uint32_t limit, const std::function<void(uint32_t)>& progress) {
  if (kind_ == Kind::kSparse || limit > term_.max_frames()) {
    return Status::Ok();  // SetLimit says what is wrong with it
  }
  for (uint32_t frame = this->limit(); frame < limit;) {
    const uint32_t chunk = frame / chunk_frames_;
    const std::chrono::nanoseconds begin = ThreadTime();
    if (Status prepared = PrepareChunk(chunk); !prepared.ok()) {
      DropPrepared();
      return prepared;
    }
    frame = std::min(limit, ChunkEnd(chunk));
    prepared_.store(frame, std::memory_order_relaxed);
    if (progress) {
      progress(frame);
    }
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(2 * (ThreadTime() - begin), kLongestPause));
  }
  return Status::Ok();
}

Status Frames::PrepareChunk(uint32_t chunk) {
  {
    MutexLock lock(mutex_);
    Cover(ChunkEnd(chunk));
    if (chunks_[chunk].committed) {
      return Status::Ok();
    }
  }
  const uint32_t first = chunk * chunk_frames_;
  RETURN_IF_ERROR(term_.Commit({first}, ChunkEnd(chunk) - first));
  MutexLock lock(mutex_);
  chunks_[chunk].committed = true;
  return Status::Ok();
}

void Frames::DropPrepared() {
  prepared_.store(0, std::memory_order_relaxed);
  bool retires = false;
  for (uint32_t chunk = 0, end = covered_chunks(); chunk < end; chunk++) {
    MutexLock lock(mutex_);  // for a chunk at a time: others want frames
    retires |= DecommitUnused(chunk);
  }
  if (retires && retire_) {
    retire_();
  }
}

std::optional<driver::FrameIndex> Frames::Take() {
  MutexLock lock(mutex_);
  if (free_.empty()) {
    return std::nullopt;
  }
  const uint32_t frame = free_.back();
  free_.pop_back();
  taken_[frame] = true;
  chunks_[frame / chunk_frames_].taken++;
  free_count_.store(static_cast<uint32_t>(free_.size()), std::memory_order_relaxed);
  used_.fetch_add(1, std::memory_order_relaxed);
  return driver::FrameIndex{frame};
}

void Frames::Give(driver::FrameIndex frame) {
  Unplace(frame);
  bool retires = false;
  {
    MutexLock lock(mutex_);
    TERMFS_CHECK(taken_[frame.value]);
    taken_[frame.value] = false;
    used_.fetch_sub(1, std::memory_order_relaxed);
    const uint32_t chunk = frame.value / chunk_frames_;
    chunks_[chunk].taken--;
    if (frame.value < limit()) {
      free_.push_back(frame.value);
      free_count_.store(static_cast<uint32_t>(free_.size()), std::memory_order_relaxed);
    } else {
      retires = DecommitUnused(chunk);
    }
  }
  if (retires && retire_) {
    retire_();
  }
}

uint32_t Frames::taken_end() const {
  MutexLock lock(mutex_);
  for (auto chunk = static_cast<uint32_t>(chunks_.size()); chunk-- > 0;) {
    if (chunks_[chunk].taken == 0) {
      continue;
    }
    for (uint32_t frame = ChunkEnd(chunk); frame-- > chunk * chunk_frames_;) {
      if (taken_[frame]) {
        return frame + 1;
      }
    }
  }
  return 0;
}

// ---------------------------------------------------------------------------------------------------------------
// Memory.

Status Frames::Commit(uint32_t chunk) {
  Chunk& state = chunks_[chunk];
  const uint32_t first = chunk * chunk_frames_;
  if (!state.committed) {
    RETURN_IF_ERROR(term_.Commit({first}, ChunkEnd(chunk) - first));
    state.committed = true;
  } else if (std::exchange(state.retiring, false)) {
    retiring_.fetch_sub(1, std::memory_order_relaxed);
    if (std::exchange(state.round, 0) != 0) {
      term_.Restore({first}, ChunkEnd(chunk) - first);
    }
  }
  return Status::Ok();
}

bool Frames::DecommitUnused(uint32_t chunk) {
  Chunk& state = chunks_[chunk];
  if (!state.committed || state.retiring || chunk * chunk_frames_ < limit() || state.taken != 0) {
    return false;
  }
  if (!revokes_) {
    Decommit(chunk);
    return false;
  }
  state.retiring = true;
  retiring_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void Frames::Decommit(uint32_t chunk) {
  const uint32_t first = chunk * chunk_frames_;
  chunks_[chunk].committed = false;
  term_.Decommit({first}, ChunkEnd(chunk) - first);
}

uint64_t Frames::BeginRetiring() {
  MutexLock lock(mutex_);
  if (retiring() == 0) {
    return 0;
  }
  round_++;
  for (uint32_t chunk = 0; chunk < chunks_.size(); chunk++) {
    if (chunks_[chunk].retiring) {
      const uint32_t first = chunk * chunk_frames_;
      chunks_[chunk].round = round_;
      term_.Revoke({first}, ChunkEnd(chunk) - first);
    }
  }
  return term_.keys(/*network=*/true).chunk_epoch;
}

void Frames::EndRetiring() {
  MutexLock lock(mutex_);
  for (uint32_t chunk = 0; chunk < chunks_.size(); chunk++) {
    Chunk& state = chunks_[chunk];
    if (state.retiring && state.round == round_) {
      state.retiring = false;
      state.round = 0;
      retiring_.fetch_sub(1, std::memory_order_relaxed);
      Decommit(chunk);
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Sparse frames.

// False: it was.
bool Frames::MarkPlaced(uint64_t page) {
  const uint64_t bit = uint64_t{1} << (page % 64);
  return (placed_[page / 64].fetch_or(bit, std::memory_order_acquire) & bit) == 0;
}

bool Frames::Place(driver::FrameIndex frame, PageIndex page) {
  if (kind_ == Kind::kDense) {
    return true;
  }
  Unplace(frame);
  if (!MarkPlaced(page.value)) {
    return false;
  }
  if (!term_.Commit({static_cast<uint32_t>(page.value)}, 1).ok()) {
    placed_[page.value / 64].fetch_and(~(uint64_t{1} << (page.value % 64)), std::memory_order_release);
    return false;
  }
  page_of_[frame.value].store(static_cast<uint32_t>(page.value) + 1, std::memory_order_relaxed);
  return true;
}

void Frames::Unplace(driver::FrameIndex frame) {
  if (kind_ == Kind::kDense) {
    return;
  }
  const uint32_t page = page_of_[frame.value].exchange(0, std::memory_order_relaxed);
  if (page == 0) {
    return;
  }
  term_.Decommit({page - 1}, 1);
  // Last: whoever places a frame there next commits anew.
  placed_[(page - 1) / 64].fetch_and(~(uint64_t{1} << ((page - 1) % 64)), std::memory_order_release);
}

void Frames::Copy(driver::FrameIndex from, driver::FrameIndex to) {
  if (kind_ == Kind::kDense) {
    std::memcpy(data(to), data(from), kPageSize);
    return;
  }
  page_of_[to.value].store(page_of_[from.value].exchange(0, std::memory_order_relaxed), std::memory_order_relaxed);
}

void Frames::DecommitUnplaced() {
  const uint32_t pages = term_.max_frames();
  for (uint32_t begin = 0; begin < pages;) {
    uint32_t end = begin;
    while (end < pages && (placed_[end / 64].load(std::memory_order_relaxed) >> (end % 64) & 1) == 0) {
      end++;
    }
    if (end > begin) {
      term_.Decommit({begin}, end - begin);
    }
    begin = end + 1;
  }
}

}  // namespace termfs::tlib::server
