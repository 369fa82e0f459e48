// SPDX-License-Identifier: Apache-2.0
//
// FuseCommand: a command of FUSE over io_uring (Linux 6.14 and later): it waits in the kernel at the queue of one CPU,
// brings a request, takes its reply, and waits again. Its memory is here; a FuseRing carries it, each time another one
// if need be. It moves bytes and knows nothing of what they mean. See "One ring for a thread".
//
// Thread-safety: the thread whose ring carries it, or the one that it was handed to since.
// Ownership:     borrows the memory given to UseBuffer. No ring carries it any more when it is destroyed.
// Errors:        errno of the step that failed.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"

namespace termfs::mount {

class FuseCommand {
 public:
  // `queue`: the CPU whose requests it gets. `payload_bytes`: of the largest read or write.
  static Result<std::unique_ptr<FuseCommand>> Create(unsigned queue, size_t payload_bytes);
  ~FuseCommand();
  FuseCommand(const FuseCommand&) = delete;
  FuseCommand& operator=(const FuseCommand&) = delete;

  // Payloads come and go by `buffer`, from its start, from now on; a reply that is there moves along. REQUIRES: it is a
  // shared mapping, page-aligned, of at least payload_bytes; the command is not in the kernel. Costs nothing when it
  // and its `number` are the same as before: another one can be where a former one was.
  Status UseBuffer(std::span<std::byte> buffer, uint64_t number);

  // Of the request that it brought, until its reply has gone: its fuse_in_header and, behind that, its argument struct
  // and what happens to follow it, copied to `into`, of kHeadBytes; payload_bytes of the buffer are names or data.
  static constexpr size_t kHeadBytes = 168;
  std::span<const std::byte> Head(std::span<std::byte> into) const;
  size_t payload_bytes() const;

  // The reply, a fuse_out_header first; a ring sends it. Parts that lie in the buffer where they belong are not copied.
  // False when it is longer than payload_bytes: the request then fails with EIO.
  bool Put(std::span<const iovec> parts);

 private:
  friend class FuseRing;
  struct Header;
  FuseCommand() = default;

  unsigned queue_ = 0;
  size_t payload_bytes_ = 0;
  Header* header_ = nullptr;     // a page of its own
  std::byte* window_ = nullptr;  // what the kernel knows as the payload; shows the memory of buffer_
  std::byte* buffer_ = nullptr;
  uint64_t number_ = 0;    // of the buffer
  iovec memory_[2] = {};   // of header and window, read by the kernel when the command is registered
  uint32_t last_ = 0;      // what the kernel was told last
  bool answered_ = false;  // a reply is ready to go
};

}  // namespace termfs::mount
