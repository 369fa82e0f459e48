// SPDX-License-Identifier: Apache-2.0
//
// FuseRing: one thread's end of FUSE over io_uring (Linux 6.14 and later): an io_uring with one command that waits in
// the kernel at the queue of one CPU, brings a request, takes its reply, and waits again, all in one system call. It
// moves bytes and knows nothing of what they mean. See "One ring for a thread".
//
//   Create - UseBuffer - Register - { Next = kRequest - Put... - Next } - destroyed
//
// Thread-safety: everything, construction and destruction included, on the thread that uses it.
// Ownership:     borrows the FUSE device and the memory given to UseBuffer.
// Errors:        errno of io_uring or of the kernel's FUSE: EOPNOTSUPP where it does not speak io_uring.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"

struct io_uring;
struct io_uring_sqe;

namespace termfs::mount {

class FuseRing {
 public:
  enum class Event {
    kRequest,  // header(), operation() and payload_bytes() say what
    kNothing,  // a signal came
    kEnded,    // the connection has ended
  };

  // `queue`: the CPU whose requests it gets. `payload_bytes`: of the largest read or write.
  static Result<std::unique_ptr<FuseRing>> Create(int device, unsigned queue, size_t payload_bytes);
  ~FuseRing();
  FuseRing(const FuseRing&) = delete;
  FuseRing& operator=(const FuseRing&) = delete;

  // Payloads come and go by `buffer`, from its start, from now on. REQUIRES: it is a shared mapping, page-aligned, of
  // at least payload_bytes; no command is in the kernel. Costs nothing when it is the same as before.
  Status UseBuffer(std::span<std::byte> buffer);
  // Hands the command to the kernel. REQUIRES: UseBuffer succeeded, the kernel has its answer to INIT.
  Status Register();
  // Sends what Put has left, and waits. On error there is no command in the kernel any more.
  Result<Event> Next();

  // Of the request that Next brought, until the next call. Its header is the kernel's fuse_in_header, the operation its
  // argument struct and what happens to follow it; payload_bytes of the buffer are names or data.
  std::span<const std::byte> header() const;
  std::span<const std::byte> operation() const;
  size_t payload_bytes() const;

  // The reply, a fuse_out_header first. Parts that lie in the buffer where they belong are not copied. False when it is
  // longer than payload_bytes: the request then fails with EIO.
  bool Put(std::span<const iovec> parts);

 private:
  struct Header;
  FuseRing() = default;
  Status Init(int device);
  io_uring_sqe* Prepare(uint32_t command);

  std::unique_ptr<io_uring> ring_;  // null: not set up
  unsigned queue_ = 0;
  size_t payload_bytes_ = 0;
  Header* header_ = nullptr;     // a page of its own
  std::byte* window_ = nullptr;  // what the kernel knows as the payload; shows the memory of buffer_
  std::byte* buffer_ = nullptr;
  iovec memory_[2] = {};  // of header and window, read by the kernel when the command is registered
  uint32_t last_command_ = 0;
  bool answered_ = false;  // a reply is ready to go
};

}  // namespace termfs::mount
