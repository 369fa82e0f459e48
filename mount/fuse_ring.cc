// SPDX-License-Identifier: Apache-2.0
#include "mount/fuse_ring.h"

#include <liburing.h>
#include <linux/fuse.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/page.h"

namespace termfs::mount {

// Of <linux/fuse.h> 7.42, newer than Debian 12's.
struct FuseRing::Header {
  std::byte in_out[128];     // fuse_in_header, then fuse_out_header
  std::byte operation[128];  // the argument struct of the opcode
  struct {
    uint64_t flags;
    uint64_t commit_id;  // names the request in its reply
    uint32_t payload_bytes;
    uint32_t padding;
    uint64_t reserved;
  } entry;
};

namespace {

enum Command : uint32_t { kRegister = 1, kCommitAndFetch = 2 };

struct CommandArgument {  // in the second half of a submission
  uint64_t flags;
  uint64_t commit_id;
  uint16_t queue;
  uint8_t padding[6];
};

Status RingError(int negative, const char* what) { return Status::Error(-negative, what); }

std::byte* MapPrivate(size_t bytes, int protection) {
  void* memory = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

}  // namespace

Result<std::unique_ptr<FuseRing>> FuseRing::Create(int device, unsigned queue, size_t payload_bytes) {
  std::unique_ptr<FuseRing> ring(new FuseRing);
  ring->queue_ = queue;
  ring->payload_bytes_ = payload_bytes;
  RETURN_IF_ERROR(ring->Init(device));
  return ring;
}

Status FuseRing::Init(int device) {
  std::byte* header = MapPrivate(kPageSize, PROT_READ | PROT_WRITE);
  if (header == nullptr) {
    return ErrnoStatus("allocate a ring's header");
  }
  header_ = new (header) Header{};
  window_ = MapPrivate(payload_bytes_, PROT_NONE);
  if (window_ == nullptr) {
    return ErrnoStatus("reserve addresses for a ring's payload");
  }
  auto ring = std::make_unique<io_uring>();
  io_uring_params parameters{};
  // The thread that submits is the one that waits, and the kernel's part of a request runs when it waits.
  parameters.flags = IORING_SETUP_SQE128 | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
  if (const int error = io_uring_queue_init_params(1, ring.get(), &parameters); error < 0) {
    return RingError(error, error == -ENOMEM ? "set up an io_uring: raise the memlock limit" : "set up an io_uring");
  }
  ring_ = std::move(ring);
  if (const int error = io_uring_register_files(ring_.get(), &device, 1); error < 0) {
    return RingError(error, "give the FUSE device to an io_uring");
  }
  io_uring_register_ring_fd(ring_.get());  // saves a look-up for each call; where it cannot be, that is all
  return Status::Ok();
}

FuseRing::~FuseRing() {
  if (ring_ != nullptr) {
    io_uring_queue_exit(ring_.get());  // takes the command back
  }
  if (window_ != nullptr) {
    munmap(window_, payload_bytes_);
  }
  if (header_ != nullptr) {
    munmap(header_, kPageSize);
  }
}

Status FuseRing::UseBuffer(std::span<std::byte> buffer) {
  TERMFS_CHECK(buffer.size() >= payload_bytes_);
  if (buffer.data() == buffer_) {
    return Status::Ok();
  }
  if (answered_) {
    std::memcpy(buffer.data(), window_, header_->entry.payload_bytes);  // the reply moves along
  }
  // The kernel keeps the address that it was told first, so the memory of the buffer is mapped there a second time:
  // mremap with an old size of zero does that for a shared mapping.
  if (mremap(buffer.data(), 0, payload_bytes_, MREMAP_MAYMOVE | MREMAP_FIXED, window_) == MAP_FAILED) {
    return ErrnoStatus("map a thread's buffer for its ring");
  }
  buffer_ = buffer.data();
  return Status::Ok();
}

io_uring_sqe* FuseRing::Prepare(uint32_t command) {
  io_uring_sqe* sqe = io_uring_get_sqe(ring_.get());
  TERMFS_CHECK(sqe != nullptr);  // one command, one place
  std::memset(sqe, 0, 2 * sizeof(*sqe));
  sqe->opcode = IORING_OP_URING_CMD;
  sqe->flags = IOSQE_FIXED_FILE;
  sqe->fd = 0;
  sqe->cmd_op = command;
  last_command_ = command;
  const CommandArgument argument{
      .flags = 0, .commit_id = header_->entry.commit_id, .queue = static_cast<uint16_t>(queue_), .padding = {}};
  std::memcpy(sqe->cmd, &argument, sizeof(argument));
  return sqe;
}

Status FuseRing::Register() {
  TERMFS_CHECK(buffer_ != nullptr);
  memory_[0] = {.iov_base = header_, .iov_len = sizeof(Header)};
  memory_[1] = {.iov_base = window_, .iov_len = payload_bytes_};
  header_->entry.commit_id = 0;
  answered_ = false;
  io_uring_sqe* sqe = Prepare(kRegister);
  sqe->addr = reinterpret_cast<uint64_t>(memory_);
  sqe->len = 2;
  if (const int submitted = io_uring_submit(ring_.get()); submitted < 0) {
    return RingError(submitted, "register with the kernel's FUSE");
  }
  io_uring_cqe* cqe = nullptr;
  if (io_uring_peek_cqe(ring_.get(), &cqe) == 0 && cqe->res < 0) {  // otherwise it waits for its first request
    const int error = cqe->res;
    io_uring_cqe_seen(ring_.get(), cqe);
    return RingError(error, "register with the kernel's FUSE");
  }
  return Status::Ok();
}

Result<FuseRing::Event> FuseRing::Next() {
  if (answered_) {
    answered_ = false;
    Prepare(kCommitAndFetch);
  }
  io_uring_cqe* cqe = nullptr;
  if (io_uring_peek_cqe(ring_.get(), &cqe) != 0) {
    const int waited = io_uring_submit_and_wait(ring_.get(), 1);
    if (waited < 0 && waited != -EINTR && waited != -EAGAIN && waited != -EBUSY) {
      return RingError(waited, "wait for FUSE requests");
    }
    if (io_uring_peek_cqe(ring_.get(), &cqe) != 0) {
      return Event::kNothing;  // what was not submitted goes with the next call
    }
  }
  const int result = cqe->res;
  io_uring_cqe_seen(ring_.get(), cqe);
  switch (result) {
    case 0:
      return Event::kRequest;
    case -EINTR:
    case -EAGAIN:
      if (last_command_ == kCommitAndFetch) {
        answered_ = true;  // once more
        return Event::kNothing;
      }
      RETURN_IF_ERROR(Register());
      return Event::kNothing;
    case -ENOTCONN:
    case -ECONNABORTED:
    case -ECANCELED:
      return Event::kEnded;
    default:
      return RingError(result < 0 ? result : -EPROTO, "receive a FUSE request");
  }
}

std::span<const std::byte> FuseRing::header() const {
  return std::span<const std::byte>(header_->in_out).first(sizeof(fuse_in_header));
}
std::span<const std::byte> FuseRing::operation() const { return header_->operation; }
size_t FuseRing::payload_bytes() const {
  return std::min<size_t>(header_->entry.payload_bytes,
                          payload_bytes_);  // in memory that the kernel writes: copied once
}

bool FuseRing::Put(std::span<const iovec> parts) {
  TERMFS_CHECK(!parts.empty() && parts[0].iov_len == sizeof(fuse_out_header));
  fuse_out_header out{};
  std::memcpy(&out, parts[0].iov_base, sizeof(out));
  bool fits = true;
  size_t length = 0;
  for (const iovec& part : parts.subspan(1)) {
    fits = fits && part.iov_len <= payload_bytes_ - length;
    if (fits && part.iov_base != buffer_ + length) {
      std::memmove(window_ + length, part.iov_base, part.iov_len);
    }
    length += fits ? part.iov_len : 0;
  }
  if (!fits) {
    out.error = -EIO;
    length = 0;
  }
  out.len = static_cast<uint32_t>(sizeof(out) + length);
  std::memcpy(header_->in_out, &out, sizeof(out));
  header_->entry.payload_bytes = static_cast<uint32_t>(length);
  answered_ = true;
  return fits;
}

}  // namespace termfs::mount
