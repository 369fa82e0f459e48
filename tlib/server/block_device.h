// SPDX-License-Identifier: Apache-2.0
//
// BlockDevice: the SSD as termfs sees it, a run of bytes that is read, written and flushed. Batch-shaped: whoever has
// several accesses to make hands them over together and has them all in flight at once.
//
// Implementations: AioBlockDevice (O_DIRECT, libaio), BufferedBlockDevice and MmapBlockDevice (the paper's rivals, they
// block), tests/fakes/fake_block_device.h.
//
// Thread-safety: any thread.
// Ownership:     buffers belong to the caller and must stay until Run returned.
// Errors:        per access, in BlockIo::status. A short transfer is continued; at the end of the device it is EIO.
//                After a failed write the bytes of its range are unspecified, old or new.
// Durability:    what was written before Flush was called is on the medium when Flush returned ok; nothing else is.
// Blocking:      inside a Task the task is parked, the worker goes on (AioBlockDevice); outside of one the thread
// blocks.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace termfs::tlib::server {

// One access to one contiguous range of the device, from or to pieces of memory.
struct BlockIo {
  enum class Kind : uint8_t { kRead, kWrite };
  Kind kind = Kind::kRead;
  uint64_t offset = 0;            // multiple of alignment()
  std::span<const iovec> pieces;  // at most kMaxPieces; addresses and lengths are multiples of alignment()
  Status status;                  // set by Run
};

class BlockDevice {
 public:
  static constexpr size_t kMaxPieces = 256;  // within the kernel's UIO_MAXIOV

  virtual ~BlockDevice() = default;
  virtual uint64_t size() const = 0;  // bytes
  // What offsets, addresses and lengths must be multiples of; 1 when anything goes.
  virtual uint32_t alignment() const = 0;

  // Carries out all of `ios`, in no particular order, and returns when the last one has ended.
  virtual void Run(std::span<BlockIo> ios) = 0;
  virtual Status Flush() = 0;

  // Makes the device larger or smaller (a block device cannot be: it is checked for size). Larger: every byte is
  // allocated; ENOSPC: it does not fit, nothing has changed. Smaller: what is cut off is lost. ENOTSUP. Blocks; one
  // caller at a time, and nobody accesses what is cut off.
  virtual Status Resize(uint64_t bytes);

  // Conveniences over Run for a single buffer.
  Status Read(uint64_t offset, std::span<std::byte> to);
  Status Write(uint64_t offset, std::span<const std::byte> from);
};

}  // namespace termfs::tlib::server
