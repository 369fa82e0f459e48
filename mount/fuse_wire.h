// SPDX-License-Identifier: Apache-2.0
//
// What the FUSE wire can say and an older libfuse does not pass on: whether a request asks to clear set-user-id and
// set-group-id bits, and the flags of the INIT and OPEN replies that came with later kernels; and READs, which are
// answered without libfuse. Works on the raw bytes,
// so that the same code runs with every libfuse 3.
//
// Thread-safety: functions without state.
// Errors:        a request too short for what its opcode promises yields no facts; libfuse refuses such a one itself.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/result.h"

namespace termfs::mount {

// Bytes in front of a write's payload. A request buffer that starts this far before a page has its payload on the page.
extern const size_t kWriteHeaderBytes;

struct RequestFacts {
  uint32_t opcode = 0;
  uint64_t unique = 0;
  uint32_t caller = 0;             // thread that waits for the answer; 0: none, or none that we can name
  bool clears_privileges = false;  // of write, setattr, open, create: the caller may not keep set-id bits
  bool caches = false;             // of read, write: the kernel keeps the pages in its cache
  uint64_t offered = 0;            // of INIT: the kernel's capabilities, both words
  uint64_t interrupts = 0;         // of INTERRUPT: the number of the request that is meant; else 0
  bool takes_ring = false;         // of INIT, set by who answers it: io_uring is taken where it is offered
};

// Bytes of the argument struct that follows the header in requests of `opcode`, without the names and data behind it.
// Absent for what no libfuse answers here.
std::optional<size_t> OperationBytes(uint32_t opcode);

// What a READ asks for.
struct ReadArguments {
  uint64_t ino = 0;
  uint64_t handle = 0;  // that the reply to OPEN gave
  uint64_t offset = 0;
  size_t size = 0;
};

RequestFacts Examine(std::span<const std::byte> request);
bool IsWrite(const RequestFacts& request);
// The length of the payload that a write announces; 0 for others.
size_t WriteBytes(std::span<const std::byte> request);
// Absent for other requests and for those that are too short.
std::optional<ReadArguments> ReadOf(std::span<const std::byte> request);
bool IsRead(const RequestFacts& request);
// The reply to READ `unique`: bytes, or an error whose code goes to the application as it is.
class ReadReply {
 public:
  ReadReply(uint64_t unique, const Result<std::span<const std::byte>>& data);
  ReadReply(const ReadReply&) = delete;
  ReadReply& operator=(const ReadReply&) = delete;
  std::span<iovec> parts() { return std::span(parts_).first(count_); }  // header first

 private:
  uint64_t header_[2];  // fuse_out_header
  std::array<iovec, 2> parts_;
  size_t count_;
};
bool IsForget(const RequestFacts& request);
// How much of `length` a copy_file_range may say that it has copied: the older reply has 32 bits for it.
size_t MostToCopy(const RequestFacts& request, size_t length);
// Requests that are answered without the file system, so that their bytes may stay where they were received. What is
// forgotten is not among them: it may be closed, and that may give the thread another buffer.
bool IsHousekeeping(const RequestFacts& request);

// Whether this kernel speaks io_uring with us (6.14 and later, where the administrator allows it).
bool OffersRing(uint64_t offered);
// Whether MAP_SHARED works together with direct I/O on this kernel (6.6 and later).
bool OffersDirectMmap(uint64_t offered);

// Completes the reply `parts` (header first) of `request` before it goes to the kernel: INIT takes, of what is offered,
// shared mappings of direct-I/O files, the duty to clear set-id bits, and io_uring if the request says so; OPEN and
// CREATE allow parallel direct writes.
void AmendReply(const RequestFacts& request, std::span<iovec> parts);

}  // namespace termfs::mount
