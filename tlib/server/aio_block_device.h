// SPDX-License-Identifier: Apache-2.0
//
// AioBlockDevice: a file or block device through O_DIRECT and libaio. Inside a task it queues on the AioContext of the
// worker and parks; outside of one (opening, formatting) it uses blocking calls on the same descriptor.
//
// Thread-safety, errors, durability: as BlockDevice. REQUIRES: tasks run on workers that poll an AioContext.
#pragma once

#include <atomic>

#include "tlib/server/block_device.h"
#include "tlib/server/device_file.h"

namespace termfs::tlib::server {

class AioBlockDevice final : public BlockDevice {
 public:
  // `file` was opened with kDirect.
  explicit AioBlockDevice(DeviceFile file) : file_(std::move(file)), bytes_(file_.bytes) {}

  uint64_t size() const override { return bytes_.load(std::memory_order_relaxed); }
  uint32_t alignment() const override { return file_.alignment; }
  void Run(std::span<BlockIo> ios) override;
  Status Flush() override;
  Status Resize(uint64_t bytes) override;

 private:
  void RunInTask(std::span<BlockIo> ios);

  const DeviceFile file_;
  std::atomic<uint64_t> bytes_;
};

}  // namespace termfs::tlib::server
