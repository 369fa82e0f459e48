// SPDX-License-Identifier: Apache-2.0
//
// The devices of the kinds that TeRM is compared with: the SSD behind the kernel's page cache. Both block the thread
// that calls them, worker or not: that is the rivals' nature, and what the comparison is about.
//
//   BufferedBlockDevice   kRpcBuffer: pread and pwrite
//   MmapBlockDevice       kRpc, kOdp: memcpy from and to a shared mapping; takes CPU page faults
//
// Thread-safety, errors, durability: as BlockDevice. An I/O error below the mapping is a SIGBUS, which no errno tells.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "tlib/server/block_device.h"
#include "tlib/server/device_file.h"

namespace termfs::tlib::server {

class BufferedBlockDevice final : public BlockDevice {
 public:
  // `file` was opened with kBuffered.
  explicit BufferedBlockDevice(DeviceFile file) : file_(std::move(file)), bytes_(file_.bytes) {}
  uint64_t size() const override { return bytes_.load(std::memory_order_relaxed); }
  uint32_t alignment() const override { return 1; }
  void Run(std::span<BlockIo> ios) override;
  Status Flush() override;
  Status Resize(uint64_t bytes) override;

 private:
  const DeviceFile file_;
  std::atomic<uint64_t> bytes_;
};

class MmapBlockDevice final : public BlockDevice {
 public:
  // `file` was opened with kBuffered. ENOMEM: no room in the address space.
  static Result<std::unique_ptr<MmapBlockDevice>> Create(DeviceFile file);
  ~MmapBlockDevice() override;
  MmapBlockDevice(const MmapBlockDevice&) = delete;
  MmapBlockDevice& operator=(const MmapBlockDevice&) = delete;

  uint64_t size() const override { return file_.bytes; }
  uint32_t alignment() const override { return 1; }
  void Run(std::span<BlockIo> ios) override;
  Status Flush() override;

 private:
  MmapBlockDevice(DeviceFile file, std::byte* mapped) : file_(std::move(file)), mapped_(mapped) {}

  const DeviceFile file_;
  std::byte* const mapped_;
};

}  // namespace termfs::tlib::server
