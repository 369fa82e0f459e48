// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/block_device.h"

namespace termfs::tlib::server {

Status BlockDevice::Resize(uint64_t) { return Status::Error(ENOTSUP, "the size of this device cannot be changed"); }

Status BlockDevice::Read(uint64_t offset, std::span<std::byte> to) {
  const iovec piece{.iov_base = to.data(), .iov_len = to.size()};
  BlockIo io{.kind = BlockIo::Kind::kRead, .offset = offset, .pieces = {&piece, 1}, .status = {}};
  Run({&io, 1});
  return std::move(io.status);
}

Status BlockDevice::Write(uint64_t offset, std::span<const std::byte> from) {
  const iovec piece{.iov_base = const_cast<std::byte*>(from.data()), .iov_len = from.size()};
  BlockIo io{.kind = BlockIo::Kind::kWrite, .offset = offset, .pieces = {&piece, 1}, .status = {}};
  Run({&io, 1});
  return std::move(io.status);
}

}  // namespace termfs::tlib::server
