// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/kernel_block_device.h"

#include <sys/mman.h>

#include <cstring>

#include "tlib/server/blocking_io.h"

namespace termfs::tlib::server {

void BufferedBlockDevice::Run(std::span<BlockIo> ios) { RunBlocking(file_.fd.get(), file_.start, ios); }

Status BufferedBlockDevice::Flush() { return FlushBlocking(file_.fd.get()); }

Status BufferedBlockDevice::Resize(uint64_t bytes) {
  ASSIGN_OR_RETURN(const uint64_t now, ResizeDeviceFile(file_, size(), bytes));
  bytes_.store(now, std::memory_order_relaxed);
  return Status::Ok();
}

Result<std::unique_ptr<MmapBlockDevice>> MmapBlockDevice::Create(DeviceFile file) {
  void* const mapped =
      mmap(nullptr, file.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd.get(), static_cast<off_t>(file.start));
  if (mapped == MAP_FAILED) {
    return ErrnoStatus("map the device");
  }
  // One fault, one page. Without it a fault reads 128 KiB around the page, which under random access costs the SSD 32
  // times the bytes and drives pages that are used out of a cache that is too small anyhow: a rival not worth beating.
  // The price: since Linux 6.3 accesses through such a mapping do not keep a page in the page cache.
  if (madvise(mapped, file.bytes, MADV_RANDOM) != 0) {
    Status failed = ErrnoStatus("advise the mapping of the device");
    munmap(mapped, file.bytes);
    return failed;
  }
  return std::unique_ptr<MmapBlockDevice>(new MmapBlockDevice(std::move(file), static_cast<std::byte*>(mapped)));
}

MmapBlockDevice::~MmapBlockDevice() { munmap(mapped_, file_.bytes); }

void MmapBlockDevice::Run(std::span<BlockIo> ios) {
  for (BlockIo& io : ios) {
    uint64_t at = io.offset;
    io.status = Status::Ok();
    for (const iovec& piece : io.pieces) {
      if (at > file_.bytes || piece.iov_len > file_.bytes - at) {
        io.status = Status::Error(EIO, "access beyond the end of the mapped device");
        break;
      }
      if (io.kind == BlockIo::Kind::kRead) {
        std::memcpy(piece.iov_base, mapped_ + at, piece.iov_len);
      } else {
        std::memcpy(mapped_ + at, piece.iov_base, piece.iov_len);
      }
      at += piece.iov_len;
    }
  }
}

Status MmapBlockDevice::Flush() {
  if (msync(mapped_, file_.bytes, MS_SYNC) != 0) {
    return ErrnoStatus("flush the mapped device");
  }
  return FlushBlocking(file_.fd.get());
}

}  // namespace termfs::tlib::server
