// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/frames.h"

#include <algorithm>

#include "base/check.h"

namespace termfs::tlib::server {

void Frames::Cover(uint32_t frames) {
  const uint32_t chunks = frames / kChunkFrames + (frames % kChunkFrames != 0 ? 1 : 0);
  if (chunks > committed_.size()) {
    taken_.resize(ChunkEnd(chunks - 1));
    taken_in_chunk_.resize(chunks);
    committed_.resize(chunks);
  }
}

uint32_t Frames::ChunkEnd(uint32_t chunk) const {
  return static_cast<uint32_t>(std::min<uint64_t>(uint64_t{chunk + 1} * kChunkFrames, term_.max_frames()));
}

Status Frames::SetLimit(uint32_t limit, const std::function<void()>& progress) {
  if (limit > term_.max_frames()) {
    return Status::Error(EINVAL, "more frames than the region can have");
  }
  if (limit < this->limit()) {
    Lower(limit);
    return Status::Ok();
  }
  return Raise(limit, progress);
}

void Frames::Adopt(driver::FrameIndex frame) {
  MutexLock lock(mutex_);
  Cover(frame.value + 1);
  TERMFS_CHECK(limit() == 0 && !taken_[frame.value]);
  taken_[frame.value] = true;
  taken_in_chunk_[frame.value / kChunkFrames]++;
  used_.fetch_add(1, std::memory_order_relaxed);
}

void Frames::DecommitRest() {
  MutexLock lock(mutex_);
  for (uint32_t chunk = 0; chunk < committed_.size(); chunk++) {
    if (!committed_[chunk]) {
      const uint32_t first = chunk * kChunkFrames;
      term_.Decommit({first}, ChunkEnd(chunk) - first);
    }
  }
  const auto covered = static_cast<uint32_t>(taken_.size());
  term_.Decommit({covered}, term_.max_frames() - covered);
}

void Frames::Lower(uint32_t limit) {
  MutexLock lock(mutex_);
  const uint32_t old_limit = this->limit();
  limit_.store(limit, std::memory_order_relaxed);
  std::erase_if(free_, [limit](uint32_t frame) { return frame >= limit; });
  free_count_.store(static_cast<uint32_t>(free_.size()), std::memory_order_relaxed);
  for (uint32_t chunk = limit / kChunkFrames; chunk < committed_.size() && chunk * kChunkFrames < old_limit; chunk++) {
    DecommitUnused(chunk);
  }
}

Status Frames::Raise(uint32_t limit, const std::function<void()>& progress) {
  while (this->limit() < limit) {
    const uint32_t begin = this->limit();
    const uint32_t chunk = begin / kChunkFrames;
    const uint32_t end = std::min(limit, ChunkEnd(chunk));
    {
      MutexLock lock(mutex_);
      Cover(end);
      if (!committed_[chunk]) {
        const uint32_t first = chunk * kChunkFrames;
        RETURN_IF_ERROR(term_.Commit({first}, ChunkEnd(chunk) - first));
        committed_[chunk] = true;
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

std::optional<driver::FrameIndex> Frames::Take() {
  MutexLock lock(mutex_);
  if (free_.empty()) {
    return std::nullopt;
  }
  const uint32_t frame = free_.back();
  free_.pop_back();
  taken_[frame] = true;
  taken_in_chunk_[frame / kChunkFrames]++;
  free_count_.store(static_cast<uint32_t>(free_.size()), std::memory_order_relaxed);
  used_.fetch_add(1, std::memory_order_relaxed);
  return driver::FrameIndex{frame};
}

void Frames::Give(driver::FrameIndex frame) {
  MutexLock lock(mutex_);
  TERMFS_CHECK(taken_[frame.value]);
  taken_[frame.value] = false;
  used_.fetch_sub(1, std::memory_order_relaxed);
  const uint32_t chunk = frame.value / kChunkFrames;
  taken_in_chunk_[chunk]--;
  if (frame.value < limit()) {
    free_.push_back(frame.value);
    free_count_.store(static_cast<uint32_t>(free_.size()), std::memory_order_relaxed);
  } else {
    DecommitUnused(chunk);
  }
}

void Frames::DecommitUnused(uint32_t chunk) {
  const uint32_t first = chunk * kChunkFrames;
  if (committed_[chunk] && first >= limit() && taken_in_chunk_[chunk] == 0) {
    committed_[chunk] = false;
    term_.Decommit({first}, ChunkEnd(chunk) - first);
  }
}

}  // namespace termfs::tlib::server
