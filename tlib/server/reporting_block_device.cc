// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/reporting_block_device.h"

namespace termfs::tlib::server {

void ReportingBlockDevice::Run(std::span<BlockIo> ios) {
  device_->Run(ios);
  for (const BlockIo& io : ios) {
    if (!io.status.ok()) {
      failures_.Report(io.kind == BlockIo::Kind::kRead ? "read" : "write", [&] { return Describe(io); });
    }
  }
}

std::string ReportingBlockDevice::Describe(const BlockIo& io) const {
  uint64_t bytes = 0;
  for (const iovec& piece : io.pieces) {
    bytes += piece.iov_len;
  }
  const std::string owner = names_.owner_of ? names_.owner_of(io.offset) : "";
  return fmt::format("{}: {} of {} bytes at {}{} failed, errno {}: {}", names_.path,
                     io.kind == BlockIo::Kind::kRead ? "read" : "write", bytes, names_.start + io.offset,
                     owner.empty() ? "" : ", of " + owner + ",", io.status.code(), io.status.ToString());
}

Status ReportingBlockDevice::Flush() {
  Status flushed = device_->Flush();
  if (!flushed.ok()) {
    failures_.Report("flush", [&] {
      return fmt::format("{}: flush failed, errno {}: {}", names_.path, flushed.code(), flushed.ToString());
    });
  }
  return flushed;
}

Status ReportingBlockDevice::Resize(uint64_t bytes) {
  Status resized = device_->Resize(bytes);
  if (!resized.ok()) {
    failures_.Report("resize", [&] {
      return fmt::format("{}: change of the size to {} bytes failed, errno {}: {}", names_.path, names_.start + bytes,
                         resized.code(), resized.ToString());
    });
  }
  return resized;
}

}  // namespace termfs::tlib::server
