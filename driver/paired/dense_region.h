// SPDX-License-Identifier: Apache-2.0
//
// A region whose frames any page may be in, on a device whose driver knows no page table. What is committed is
// registered with the device chunk by chunk, and pinned by it: as the source of WRITEs to clients and, where the region
// is READ by validation, for peers over the network to READ, who READ the software RNIC's page table, too.
//
// Thread-safety, errors: driver/nic.h. Whole chunks of frames only are committed.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "driver/device.h"
#include "driver/paired/key_map.h"
#include "driver/paired/term_region.h"

namespace termfs::driver::paired {

// How peers over the network READ such a region of that kind.
ReadWay WayOfDense(RegionKind kind);

class DenseRegion final : public PairedTermRegion {
 public:
  // `resumed`: frames may hold what an earlier process left, which a Commit that fails must not lose. `device` outlives
  // this.
  static Result<std::unique_ptr<TermRegion>> Create(std::unique_ptr<TermRegion> local, bool resumed,
                                                    DeviceDomain& device, std::shared_ptr<KeyMap> keys);
  ~DenseRegion() override;
  DenseRegion(const DenseRegion&) = delete;
  DenseRegion& operator=(const DenseRegion&) = delete;

  RegionKeys keys(bool network) const override EXCLUDES(mutex_);
  Status Commit(FrameIndex first, uint32_t count) override EXCLUDES(mutex_);
  void Decommit(FrameIndex first, uint32_t count) override EXCLUDES(mutex_);
  void Revoke(FrameIndex first, uint32_t count) override EXCLUDES(mutex_);
  void Restore(FrameIndex first, uint32_t count) override EXCLUDES(mutex_);
  Status Resize(uint64_t pages) override EXCLUDES(mutex_);
  Status MakeRoom(uint64_t pages) override EXCLUDES(mutex_);

 private:
  // Named: keys() tell of it.
  struct Chunk {
    std::unique_ptr<MemoryRegion> region;  // null: it has no memory
    bool named = false;
  };

  DenseRegion(std::unique_ptr<TermRegion> local, bool resumed, DeviceDomain& device, std::shared_ptr<KeyMap> keys)
      : PairedTermRegion(std::move(local)),
        way_(WayOfDense(PairedTermRegion::kind())),
        resumed_(resumed),
        device_(device),
        keys_(std::move(keys)) {}
  uint64_t ChunksBefore(uint64_t frame) const { return (frame + chunk_frames() - 1) / chunk_frames(); }
  std::byte* DataOf(uint64_t chunk) { return frame({static_cast<uint32_t>(chunk * chunk_frames())}); }
  Result<std::unique_ptr<MemoryRegion>> Register(uint64_t chunk, uint32_t frames);
  // Those that lie in the range.
  std::span<Chunk> Of(FrameIndex first, uint32_t count) REQUIRES(mutex_);

  const ReadWay way_;
  const bool resumed_;
  DeviceDomain& device_;
  const std::shared_ptr<KeyMap> keys_;
  mutable Mutex mutex_;
  // With ReadWay::kValidated: the page table, registered anew when the region has grown. The last is the longest; those
  // before stay for peers that have heard of them.
  std::vector<std::unique_ptr<MemoryRegion>> tables_ GUARDED_BY(mutex_);
  std::vector<Chunk> chunks_ GUARDED_BY(mutex_);
  uint64_t epoch_ GUARDED_BY(mutex_) = 1;
};

}  // namespace termfs::driver::paired
