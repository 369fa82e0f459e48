// SPDX-License-Identifier: Apache-2.0
#include "driver/paired/dense_region.h"

namespace termfs::driver::paired {

DenseRegion::~DenseRegion() {
  MutexLock lock(mutex_);
  for (const auto& [first, piece] : pieces_) {
    keys_->Remove(frames_lkey(), frame({first}));
  }
}

RegionKeys DenseRegion::keys(bool network) const {
  return network ? RegionKeys{.way = ReadWay::kRpcOnly} : local().keys(false);
}

Status DenseRegion::Commit(FrameIndex first, uint32_t count) {
  RETURN_IF_ERROR(local().Commit(first, count));
  std::byte* const data = frame(first);
  const size_t bytes = uint64_t{count} << kPageBits;
  Result<std::unique_ptr<MemoryRegion>> region = device_.RegisterForeign(data, bytes, Access::kLocalWrite);
  if (!region.ok()) {
    local().Decommit(first, count);
    return std::move(region).status().WithContext("let the device at the DRAM tier");
  }
  keys_->Add(frames_lkey(), data, bytes, (*region)->lkey());
  MutexLock lock(mutex_);
  pieces_[first.value] = {count, std::move(*region)};
  return Status::Ok();
}

void DenseRegion::Decommit(FrameIndex first, uint32_t count) {
  {
    MutexLock lock(mutex_);
    const uint64_t end = uint64_t{first.value} + count;
    for (auto piece = pieces_.lower_bound(first.value); piece != pieces_.end() && piece->first < end;) {
      keys_->Remove(frames_lkey(), frame({piece->first}));
      piece = pieces_.erase(piece);  // before its memory goes, which the device has pinned
    }
  }
  local().Decommit(first, count);
}

}  // namespace termfs::driver::paired
