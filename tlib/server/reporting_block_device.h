// SPDX-License-Identifier: Apache-2.0
//
// ReportingBlockDevice: logs each failed access to another BlockDevice, with file, offset, length and error, and what
// the bytes belong to; of each kind one line a minute (base/failure_log.h).
//
// Thread-safety, errors, durability: the other device's, which it owns.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/failure_log.h"
#include "tlib/server/block_device.h"

namespace termfs::tlib::server {

class ReportingBlockDevice final : public BlockDevice {
 public:
  struct Names {
    std::string path;
    uint64_t start = 0;  // where in that file the device begins
    // What the byte at the device's offset belongs to; empty, or null: not known.
    std::function<std::string(uint64_t offset)> owner_of{};
  };
  ReportingBlockDevice(std::unique_ptr<BlockDevice> device, Names names,
                       const termfs::Clock& clock = termfs::Clock::System())
      : device_(std::move(device)), names_(std::move(names)), failures_(clock) {}

  uint64_t size() const override { return device_->size(); }
  uint32_t alignment() const override { return device_->alignment(); }
  void Run(std::span<BlockIo> ios) override;
  Status Flush() override;
  Status Resize(uint64_t bytes) override;

 private:
  std::string Describe(const BlockIo& io) const;

  const std::unique_ptr<BlockDevice> device_;
  const Names names_;
  FailureLog failures_;
};

}  // namespace termfs::tlib::server
