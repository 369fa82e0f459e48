// SPDX-License-Identifier: Apache-2.0
//
// CrashBlockDevice: another device, with crash points around its accesses: PREFIX.read, PREFIX.write, PREFIX.flush
// before, PREFIX.was_read, PREFIX.written, PREFIX.flushed after.
//
// Thread-safety, errors: the other device's. Ownership: owns it, borrows the points.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "tests/fakes/crash_points.h"
#include "tlib/server/block_device.h"

namespace termfs::tlib::server {

class CrashBlockDevice final : public BlockDevice {
 public:
  CrashBlockDevice(std::unique_ptr<BlockDevice> device, CrashPoints& points, std::string prefix)
      : device_(std::move(device)), points_(points), prefix_(std::move(prefix)) {}
  uint64_t size() const override { return device_->size(); }
  uint32_t alignment() const override { return device_->alignment(); }
  void Run(std::span<BlockIo> ios) override {
    const bool writes = !ios.empty() && ios[0].kind == BlockIo::Kind::kWrite;
    points_.Pass(prefix_ + (writes ? ".write" : ".read"));
    device_->Run(ios);
    points_.Pass(prefix_ + (writes ? ".written" : ".was_read"));
  }
  Status Flush() override {
    points_.Pass(prefix_ + ".flush");
    Status status = device_->Flush();
    points_.Pass(prefix_ + ".flushed");
    return status;
  }

 private:
  const std::unique_ptr<BlockDevice> device_;
  CrashPoints& points_;
  const std::string prefix_;
};

}  // namespace termfs::tlib::server
