// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/metered_block_device.h"

#include <chrono>

namespace termfs::tlib::server {

void MeteredBlockDevice::Run(std::span<BlockIo> ios) {
  if (ios.empty()) {
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  device_.Run(ios);
  const auto took = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin);
  for (const BlockIo& io : ios) {
    uint64_t bytes = 0;
    for (const iovec& piece : io.pieces) {
      bytes += piece.iov_len;
    }
    const bool read = io.kind == BlockIo::Kind::kRead;
    if (!io.status.ok()) {
      metrics_.ssd_errors.Add();
    }
    (read ? metrics_.ssd_reads : metrics_.ssd_writes).Add();
    (read ? metrics_.ssd_read_bytes : metrics_.ssd_write_bytes).Add(bytes);
    (read ? metrics_.ssd_read : metrics_.ssd_write).Record(static_cast<uint64_t>(took.count()));
  }
}

Status MeteredBlockDevice::Flush() {
  Status flushed = device_.Flush();
  if (!flushed.ok()) {
    metrics_.ssd_errors.Add();
  }
  return flushed;
}

}  // namespace termfs::tlib::server
