// SPDX-License-Identifier: Apache-2.0
#include "mount/fuse_command.h"

#include <linux/fuse.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/check.h"
#include "base/page.h"
#include "mount/fuse_command_header.h"

namespace termfs::mount {
namespace {

std::byte* MapPrivate(size_t bytes, int protection) {
  void* memory = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

}  // namespace

Result<std::unique_ptr<FuseCommand>> FuseCommand::Create(unsigned queue, size_t payload_bytes) {
  std::unique_ptr<FuseCommand> command(new FuseCommand);
  command->queue_ = queue;
  command->payload_bytes_ = payload_bytes;
  std::byte* header = MapPrivate(kPageSize, PROT_READ | PROT_WRITE);
  if (header == nullptr) {
    return ErrnoStatus("allocate a command's header");
  }
  command->header_ = new (header) Header{};
  command->window_ = MapPrivate(payload_bytes, PROT_NONE);
  if (command->window_ == nullptr) {
    return ErrnoStatus("reserve addresses for a command's payload");
  }
  command->memory_[0] = {.iov_base = command->header_, .iov_len = sizeof(Header)};
  command->memory_[1] = {.iov_base = command->window_, .iov_len = payload_bytes};
  return command;
}

FuseCommand::~FuseCommand() {
  if (window_ != nullptr) {
    munmap(window_, payload_bytes_);
  }
  if (header_ != nullptr) {
    munmap(header_, kPageSize);
  }
}

Status FuseCommand::UseBuffer(std::span<std::byte> buffer, uint64_t number) {
  TERMFS_CHECK(buffer.size() >= payload_bytes_);
  if (buffer.data() == buffer_ && number == number_) {
    return Status::Ok();
  }
  if (answered_) {
    std::memcpy(buffer.data(), window_, payload_bytes());
  }
  // The kernel keeps the address that it was told first, so the memory of the buffer is mapped there a second time:
  // mremap with an old size of zero does that for a shared mapping.
  if (mremap(buffer.data(), 0, payload_bytes_, MREMAP_MAYMOVE | MREMAP_FIXED, window_) == MAP_FAILED) {
    return ErrnoStatus("map a thread's buffer for its command");
  }
  buffer_ = buffer.data();
  number_ = number;
  return Status::Ok();
}

size_t FuseCommand::payload_bytes() const {
  return std::min<size_t>(header_->entry.payload_bytes,
                          payload_bytes_);  // in memory that the kernel writes: copied once
}

std::span<const std::byte> FuseCommand::Head(std::span<std::byte> into) const {
  static_assert(kHeadBytes == sizeof(fuse_in_header) + sizeof(Header::operation));
  std::memcpy(into.data(), header_->in_out, sizeof(fuse_in_header));
  std::memcpy(into.data() + sizeof(fuse_in_header), header_->operation, sizeof(Header::operation));
  return into.first(kHeadBytes);
}

bool FuseCommand::Put(std::span<const iovec> parts) {
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
