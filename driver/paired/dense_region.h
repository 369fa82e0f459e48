// SPDX-License-Identifier: Apache-2.0
//
// A region whose frames any page may be in, served over the network by RPC only: the device has what is committed
// registered, as the source of WRITEs to clients.
//
// Thread-safety, errors: driver/nic.h.
#pragma once

#include <map>
#include <memory>

#include "base/mutex.h"
#include "driver/device.h"
#include "driver/paired/key_map.h"
#include "driver/paired/term_region.h"

namespace termfs::driver::paired {

class DenseRegion final : public PairedTermRegion {
 public:
  DenseRegion(std::unique_ptr<TermRegion> region, DeviceDomain& device, std::shared_ptr<KeyMap> keys)
      : PairedTermRegion(std::move(region)), device_(device), keys_(std::move(keys)) {}
  ~DenseRegion() override;

  RegionKeys keys(bool network) const override;
  Status Commit(FrameIndex first, uint32_t count) override EXCLUDES(mutex_);
  void Decommit(FrameIndex first, uint32_t count) override EXCLUDES(mutex_);

 private:
  struct Piece {
    uint32_t count;
    std::unique_ptr<MemoryRegion> region;
  };

  DeviceDomain& device_;
  const std::shared_ptr<KeyMap> keys_;
  Mutex mutex_;
  std::map<uint32_t, Piece> pieces_ GUARDED_BY(mutex_);  // by their first frames
};

}  // namespace termfs::driver::paired
