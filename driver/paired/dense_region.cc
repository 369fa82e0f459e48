// SPDX-License-Identifier: Apache-2.0
#include "driver/paired/dense_region.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace termfs::driver::paired {

ReadWay WayOfDense(RegionKind kind) {
  // What an absent page of a kOdp region raises, nobody hears of here.
  return AllowsOneSidedRead(kind) && kind != RegionKind::kOdp ? ReadWay::kValidated : ReadWay::kRpcOnly;
}

Result<std::unique_ptr<TermRegion>> DenseRegion::Create(std::unique_ptr<TermRegion> local, bool resumed,
                                                        DeviceDomain& device, std::shared_ptr<KeyMap> keys) {
  std::unique_ptr<DenseRegion> region(new DenseRegion(std::move(local), resumed, device, std::move(keys)));
  RETURN_IF_ERROR(region->MakeRoom(region->pages()));
  return std::unique_ptr<TermRegion>(std::move(region));
}

DenseRegion::~DenseRegion() {
  MutexLock lock(mutex_);
  for (size_t chunk = 0; chunk < chunks_.size(); chunk++) {
    if (chunks_[chunk].region != nullptr) {
      keys_->Remove(frames_lkey(), DataOf(chunk));
    }
  }
}

RegionKeys DenseRegion::keys(bool network) const {
  if (!network) {
    return local().keys(false);
  }
  RegionKeys keys{.way = way_};
  if (way_ != ReadWay::kValidated) {
    return keys;
  }
  keys.chunk_frames = chunk_frames();
  MutexLock lock(mutex_);
  keys.table = tables_.back()->rkey();
  keys.chunk_epoch = epoch_;
  for (const Chunk& chunk : chunks_) {
    keys.frame_chunks.push_back(chunk.named ? chunk.region->rkey() : RKey{});
  }
  return keys;
}

std::span<DenseRegion::Chunk> DenseRegion::Of(FrameIndex first, uint32_t count) {
  const size_t begin = std::min<size_t>(ChunksBefore(first.value), chunks_.size());
  const size_t end = std::min<size_t>(ChunksBefore(uint64_t{first.value} + count), chunks_.size());
  return std::span(chunks_).subspan(begin, end - begin);
}

Result<std::unique_ptr<MemoryRegion>> DenseRegion::Register(uint64_t chunk, uint32_t frames) {
  const Access access = way_ == ReadWay::kValidated ? Access::kLocalWrite | Access::kRemoteRead : Access::kLocalWrite;
  return device_.RegisterForeign(DataOf(chunk), uint64_t{frames} << kPageBits, access);
}

Status DenseRegion::Commit(FrameIndex first, uint32_t count) {
  const uint64_t end = uint64_t{first.value} + count;
  if (first.value % chunk_frames() != 0 || (end % chunk_frames() != 0 && end != max_frames())) {
    return Status::Error(EINVAL, "commit a part of a chunk of frames");
  }
  RETURN_IF_ERROR(local().Commit(first, count));
  std::vector<Chunk> committed;
  for (uint64_t frame = first.value; frame < end; frame += chunk_frames()) {
    const auto frames = static_cast<uint32_t>(std::min<uint64_t>(chunk_frames(), end - frame));
    Result<std::unique_ptr<MemoryRegion>> region = Register(frame / chunk_frames(), frames);
    if (!region.ok()) {
      committed.clear();  // before their memory goes, which the device has pinned
      if (!resumed_) {
        local().Decommit(first, count);
      }
      return std::move(region).status().WithContext("let the device at the DRAM tier");
    }
    committed.push_back({.region = std::move(region).value(), .named = true});
  }
  const uint64_t begin = first.value / chunk_frames();
  MutexLock lock(mutex_);
  chunks_.resize(std::max<size_t>(chunks_.size(), begin + committed.size()));
  for (size_t i = 0; i < committed.size(); i++) {
    keys_->Add(frames_lkey(), DataOf(begin + i), committed[i].region->size(), committed[i].region->lkey());
    chunks_[begin + i] = std::move(committed[i]);
  }
  return Status::Ok();
}

Status DenseRegion::MakeRoom(uint64_t pages) {
  RETURN_IF_ERROR(local().MakeRoom(pages));
  if (way_ != ReadWay::kValidated) {
    return Status::Ok();
  }
  const std::span<std::byte> table = local().memory().table;
  const size_t bytes = std::min(RoundUpToPage(pages * sizeof(PageTableEntry)), table.size());
  MutexLock lock(mutex_);
  if (!tables_.empty() && bytes <= tables_.back()->size()) {
    return Status::Ok();
  }
  Result<std::unique_ptr<MemoryRegion>> registered = device_.RegisterForeign(table.data(), bytes, Access::kRemoteRead);
  if (!registered.ok()) {
    return std::move(registered).status().WithContext("let the device at the page table");
  }
  tables_.push_back(std::move(registered).value());
  return Status::Ok();
}

Status DenseRegion::Resize(uint64_t pages) {
  RETURN_IF_ERROR(MakeRoom(pages));
  return local().Resize(pages);
}

void DenseRegion::Decommit(FrameIndex first, uint32_t count) {
  {
    MutexLock lock(mutex_);
    for (Chunk& chunk : Of(first, count)) {
      if (chunk.region != nullptr) {
        keys_->Remove(frames_lkey(), chunk.region->data());
        chunk = {};  // before its memory goes, which the device has pinned
      }
    }
  }
  local().Decommit(first, count);
}

void DenseRegion::Revoke(FrameIndex first, uint32_t count) {
  MutexLock lock(mutex_);
  for (Chunk& chunk : Of(first, count)) {
    chunk.named = false;
  }
  epoch_++;
}

void DenseRegion::Restore(FrameIndex first, uint32_t count) {
  MutexLock lock(mutex_);
  for (Chunk& chunk : Of(first, count)) {
    chunk.named = chunk.region != nullptr;
  }
}

}  // namespace termfs::driver::paired
