// SPDX-License-Identifier: Apache-2.0
//
// MeteredBlockDevice: counts and times what goes to another BlockDevice.
//
// Thread-safety, errors, durability: the other device's, which outlives this.
#pragma once

#include "tlib/server/block_device.h"
#include "tlib/server/storage_metrics.h"

namespace termfs::tlib::server {

class MeteredBlockDevice final : public BlockDevice {
 public:
  MeteredBlockDevice(BlockDevice& device, StorageMetrics& metrics) : device_(device), metrics_(metrics) {}
  uint64_t size() const override { return device_.size(); }
  uint32_t alignment() const override { return device_.alignment(); }
  void Run(std::span<BlockIo> ios) override;
  Status Flush() override;
  Status Resize(uint64_t bytes) override { return device_.Resize(bytes); }

 private:
  BlockDevice& device_;
  StorageMetrics& metrics_;
};

}  // namespace termfs::tlib::server
