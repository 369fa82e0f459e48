// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/frame_chunks.h"

#include <algorithm>

namespace termfs::driver::softnic {

std::span<FrameChunks::Chunk> FrameChunks::Of(FrameIndex first, uint32_t count) {
  const size_t begin = std::min<size_t>(first.value / chunk_frames_, chunks_.size());
  const size_t end = (uint64_t{first.value} + count + chunk_frames_ - 1) / chunk_frames_;
  return std::span(chunks_).subspan(begin, std::max(begin, std::min(end, chunks_.size())) - begin);
}

Result<RKey> FrameChunks::Export(size_t chunk) const {
  const uint64_t first = uint64_t{chunk} * chunk_frames_;
  softnic::Export memory;
  memory.domain = domain_;
  memory.access = Access::kRemoteRead;
  memory.object = frames_;
  memory.offset = first << kPageBits;
  memory.size = std::min<uint64_t>(chunk_frames_, max_frames_ - first) << kPageBits;
  return registry_->AddExport(std::move(memory));
}

Status FrameChunks::Register(FrameIndex first, uint32_t count) {
  if (!Whole(first, count)) {
    return Status::Error(EINVAL, "commit a part of a chunk of frames");
  }
  const size_t begin = first.value / chunk_frames_;
  const size_t end = begin + (count + chunk_frames_ - 1) / chunk_frames_;
  std::vector<RKey> keys;
  for (size_t chunk = begin; chunk < end; chunk++) {
    Result<RKey> key = Export(chunk);
    if (!key.ok()) {
      std::for_each(keys.begin(), keys.end(), [this](RKey good) { registry_->RemoveExport(good); });
      return std::move(key).status();
    }
    keys.push_back(*key);
  }
  MutexLock lock(mutex_);
  chunks_.resize(std::max(chunks_.size(), end));
  for (size_t i = 0; i < keys.size(); i++) {
    chunks_[begin + i] = {.rkey = keys[i], .named = true};
  }
  return Status::Ok();
}

void FrameChunks::Deregister(FrameIndex first, uint32_t count) {
  MutexLock lock(mutex_);
  for (Chunk& chunk : Of(first, count)) {
    registry_->RemoveExport(chunk.rkey);  // of none nothing happens
    chunk = {};
  }
}

void FrameChunks::Revoke(FrameIndex first, uint32_t count) {
  MutexLock lock(mutex_);
  for (Chunk& chunk : Of(first, count)) {
    chunk.named = false;
  }
  epoch_++;
}

void FrameChunks::Restore(FrameIndex first, uint32_t count) {
  MutexLock lock(mutex_);
  for (Chunk& chunk : Of(first, count)) {
    chunk.named = chunk.rkey != RKey{};
  }
}

void FrameChunks::Describe(RegionKeys& keys) const {
  keys.chunk_frames = chunk_frames_;
  MutexLock lock(mutex_);
  keys.chunk_epoch = epoch_;
  for (const Chunk& chunk : chunks_) {
    keys.frame_chunks.push_back(chunk.named ? chunk.rkey : RKey{});
  }
}

}  // namespace termfs::driver::softnic
