// SPDX-License-Identifier: Apache-2.0
//
// AioBlockDevice: a file or block device through O_DIRECT and libaio. Inside a task it queues on the AioContext of the
// worker and parks; outside of one (opening, formatting) it uses blocking calls on the same descriptor.
//
// Thread-safety, errors, durability: as BlockDevice. REQUIRES: tasks run on workers that poll an AioContext.
#pragma once

#include "tlib/server/block_device.h"
#include "tlib/server/device_file.h"

namespace termfs::tlib::server {

class AioBlockDevice final : public BlockDevice {
 public:
  // `file` was opened with kDirect.
  explicit AioBlockDevice(DeviceFile file) : file_(std::move(file)) {}

  uint64_t size() const override { return file_.bytes; }
  uint32_t alignment() const override { return file_.alignment; }
  void Run(std::span<BlockIo> ios) override;
  Status Flush() override;

 private:
  void RunInTask(std::span<BlockIo> ios);

  const DeviceFile file_;
};

}  // namespace termfs::tlib::server
