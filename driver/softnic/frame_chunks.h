// SPDX-License-Identifier: Apache-2.0
//
// FrameChunks: the keys by which peers that validate READ the frames of a TERM region, one for each chunk that has
// memory. A key is named from Register to Revoke and after Restore; it is good from Register to Deregister.
//
// Thread-safety: any thread; for one chunk the caller serialises.
#pragma once

#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "driver/nic.h"
#include "driver/softnic/registry.h"

namespace termfs::driver::softnic {

class FrameChunks {
 public:
  FrameChunks(std::shared_ptr<Registry> registry, uint32_t domain, std::shared_ptr<SharedObject> frames,
              uint32_t max_frames)
      : registry_(std::move(registry)),
        domain_(domain),
        frames_(std::move(frames)),
        max_frames_(max_frames),
        chunk_frames_(ChunkFramesOf(max_frames)) {}
  ~FrameChunks() { Deregister({0}, max_frames_); }
  FrameChunks(const FrameChunks&) = delete;
  FrameChunks& operator=(const FrameChunks&) = delete;

  // EINVAL: not whole chunks. After an error none of them is registered.
  Status Register(FrameIndex first, uint32_t count) EXCLUDES(mutex_);
  void Deregister(FrameIndex first, uint32_t count) EXCLUDES(mutex_);
  void Revoke(FrameIndex first, uint32_t count) EXCLUDES(mutex_);
  void Restore(FrameIndex first, uint32_t count) EXCLUDES(mutex_);
  // Sets what of `keys` is about chunks.
  void Describe(RegionKeys& keys) const EXCLUDES(mutex_);

 private:
  struct Chunk {
    RKey rkey{};
    bool named = false;
  };
  bool Whole(FrameIndex first, uint32_t count) const {
    return first.value % chunk_frames_ == 0 &&
           (count % chunk_frames_ == 0 || uint64_t{first.value} + count == max_frames_);
  }
  // Those that lie in the range.
  std::span<Chunk> Of(FrameIndex first, uint32_t count) REQUIRES(mutex_);
  Result<RKey> Export(size_t chunk) const;

  const std::shared_ptr<Registry> registry_;
  const uint32_t domain_;
  const std::shared_ptr<SharedObject> frames_;
  const uint32_t max_frames_;
  const uint32_t chunk_frames_;
  mutable Mutex mutex_;
  std::vector<Chunk> chunks_ GUARDED_BY(mutex_);
  uint64_t epoch_ GUARDED_BY(mutex_) = 1;
};

}  // namespace termfs::driver::softnic
