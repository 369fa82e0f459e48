// SPDX-License-Identifier: Apache-2.0
#include "mount/fuse_wire.h"

#include <linux/fuse.h>

#include <algorithm>
#include <cstring>

namespace termfs::mount {
namespace {

// Of <linux/fuse.h> 7.39 and 7.42, newer than Debian 12's.
constexpr uint64_t kDirectIoAllowMmap = uint64_t{1} << 36;
constexpr uint64_t kOverIoUring = uint64_t{1} << 41;
// Of 7.39: FUSE_STATX, and the size of fuse_statx_in.
constexpr uint32_t kStatx = 52;
constexpr size_t kStatxBytes = 24;
// Of 7.45: FUSE_COPY_FILE_RANGE_64, which differs from the older one in its reply.
constexpr uint32_t kCopyFileRange64 = 53;

// The argument struct that follows the header, copied out; false when the request is too short.
template <typename T>
bool Argument(std::span<const std::byte> request, T& argument) {
  if (request.size() < sizeof(fuse_in_header) + sizeof(T)) {
    return false;
  }
  std::memcpy(&argument, request.data() + sizeof(fuse_in_header), sizeof(T));
  return true;
}

// What passes the cache by names the owner of its locks; page by page, for mappings, nobody is named.
bool CachesPages(uint32_t opcode, std::span<const std::byte> request) {
  if (opcode == FUSE_READ) {
    fuse_read_in in{};
    return Argument(request, in) && (in.read_flags & FUSE_READ_LOCKOWNER) == 0;
  }
  fuse_write_in in{};
  return opcode == FUSE_WRITE && Argument(request, in) && (in.write_flags & FUSE_WRITE_LOCKOWNER) == 0;
}

bool ClearsPrivileges(uint32_t opcode, std::span<const std::byte> request) {
  switch (opcode) {
    case FUSE_WRITE: {
      fuse_write_in in{};
      return Argument(request, in) && (in.write_flags & FUSE_WRITE_KILL_SUIDGID) != 0;
    }
    case FUSE_SETATTR: {
      fuse_setattr_in in{};
      return Argument(request, in) && (in.valid & FATTR_KILL_SUIDGID) != 0;
    }
    case FUSE_OPEN: {
      fuse_open_in in{};
      return Argument(request, in) && (in.open_flags & FUSE_OPEN_KILL_SUIDGID) != 0;
    }
    case FUSE_CREATE: {
      fuse_create_in in{};
      return Argument(request, in) && (in.open_flags & FUSE_OPEN_KILL_SUIDGID) != 0;
    }
    default:
      return false;
  }
}

uint64_t Offered(std::span<const std::byte> request) {
  fuse_init_in in{};
  if (!Argument(request, in)) {
    return 0;  // a kernel before 5.17: libfuse reads its shorter struct
  }
  return in.flags | ((in.flags & FUSE_INIT_EXT) != 0 ? uint64_t{in.flags2} << 32 : 0);
}

void AmendInit(const RequestFacts& request, iovec part) {
  fuse_init_out out{};
  if (part.iov_len < sizeof(out)) {
    return;
  }
  std::memcpy(&out, part.iov_base, sizeof(out));
  const uint64_t wanted =
      FUSE_HANDLE_KILLPRIV_V2 | kDirectIoAllowMmap | (request.takes_ring ? kOverIoUring : uint64_t{0});
  const uint64_t taken = request.offered & wanted;
  out.flags |= static_cast<uint32_t>(taken);
  if (taken >> 32 != 0) {
    out.flags |= FUSE_INIT_EXT;
    out.flags2 |= static_cast<uint32_t>(taken >> 32);
  }
  std::memcpy(part.iov_base, &out, sizeof(out));
}

// `at`: where fuse_open_out starts within the part.
void AmendOpen(iovec part, size_t at) {
  fuse_open_out out{};
  if (part.iov_len < at + sizeof(out)) {
    return;
  }
  auto* place = static_cast<std::byte*>(part.iov_base) + at;
  std::memcpy(&out, place, sizeof(out));
  if ((out.open_flags & FOPEN_DIRECT_IO) != 0) {
    out.open_flags |= FOPEN_PARALLEL_DIRECT_WRITES;
  }
  std::memcpy(place, &out, sizeof(out));
}

}  // namespace

const size_t kWriteHeaderBytes = sizeof(fuse_in_header) + sizeof(fuse_write_in);

RequestFacts Examine(std::span<const std::byte> request) {
  RequestFacts facts;
  fuse_in_header header{};
  if (request.size() < sizeof(header)) {
    return facts;
  }
  std::memcpy(&header, request.data(), sizeof(header));
  facts.opcode = header.opcode;
  facts.unique = header.unique;
  facts.caller = header.pid;
  facts.clears_privileges = ClearsPrivileges(header.opcode, request);
  facts.caches = CachesPages(header.opcode, request);
  if (header.opcode == FUSE_INTERRUPT) {
    fuse_interrupt_in in{};
    facts.interrupts = Argument(request, in) ? in.unique : 0;
  }
  if (header.opcode == FUSE_INIT) {
    facts.offered = Offered(request);
  }
  return facts;
}

bool IsWrite(const RequestFacts& request) { return request.opcode == FUSE_WRITE; }

size_t WriteBytes(std::span<const std::byte> request) {
  fuse_write_in in{};
  return IsWrite(Examine(request)) && Argument(request, in) ? in.size : 0;
}

std::optional<ReadArguments> ReadOf(std::span<const std::byte> request) {
  fuse_in_header header{};
  fuse_read_in in{};
  if (request.size() < sizeof(header)) {
    return std::nullopt;
  }
  std::memcpy(&header, request.data(), sizeof(header));
  if (header.opcode != FUSE_READ || !Argument(request, in)) {
    return std::nullopt;
  }
  return ReadArguments{.ino = header.nodeid, .handle = in.fh, .offset = in.offset, .size = in.size};
}

bool IsRead(const RequestFacts& request) { return request.opcode == FUSE_READ; }

ReadReply::ReadReply(uint64_t unique, const Result<std::span<const std::byte>>& data) {
  const std::span<const std::byte> bytes = data.ok() ? *data : std::span<const std::byte>{};
  const fuse_out_header out{
      .len = static_cast<uint32_t>(sizeof(out) + bytes.size()), .error = -data.status().code(), .unique = unique};
  static_assert(sizeof(out) == sizeof(header_));
  std::memcpy(header_, &out, sizeof(out));
  parts_ = {{{.iov_base = header_, .iov_len = sizeof(header_)},
             {.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()}}};
  count_ = bytes.empty() ? 1 : 2;
}

bool IsForget(const RequestFacts& request) {
  return request.opcode == FUSE_FORGET || request.opcode == FUSE_BATCH_FORGET;
}

size_t MostToCopy(const RequestFacts& request, size_t length) {
  constexpr size_t kMost = 0xFFFFF000;  // whole pages
  return request.opcode == kCopyFileRange64 ? length : std::min(length, kMost);
}

bool IsHousekeeping(const RequestFacts& request) {
  switch (request.opcode) {
    case FUSE_INIT:
    case FUSE_INTERRUPT:
    case FUSE_DESTROY:
      return true;
    default:
      return false;
  }
}

std::optional<size_t> OperationBytes(uint32_t opcode) {
  switch (opcode) {
    case FUSE_LOOKUP:
    case FUSE_READLINK:
    case FUSE_SYMLINK:
    case FUSE_UNLINK:
    case FUSE_RMDIR:
    case FUSE_STATFS:
    case FUSE_REMOVEXATTR:
    case FUSE_DESTROY:
      return 0;
    case FUSE_GETATTR:
      return sizeof(fuse_getattr_in);
    case kStatx:
      return kStatxBytes;
    case FUSE_SETATTR:
      return sizeof(fuse_setattr_in);
    case FUSE_MKNOD:
      return sizeof(fuse_mknod_in);
    case FUSE_MKDIR:
      return sizeof(fuse_mkdir_in);
    case FUSE_RENAME:
      return sizeof(fuse_rename_in);
    case FUSE_RENAME2:
      return sizeof(fuse_rename2_in);
    case FUSE_LINK:
      return sizeof(fuse_link_in);
    case FUSE_OPEN:
    case FUSE_OPENDIR:
      return sizeof(fuse_open_in);
    case FUSE_CREATE:
    case FUSE_TMPFILE:
      return sizeof(fuse_create_in);
    case FUSE_READ:
    case FUSE_READDIR:
    case FUSE_READDIRPLUS:
      return sizeof(fuse_read_in);
    case FUSE_WRITE:
      return sizeof(fuse_write_in);
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
      return sizeof(fuse_release_in);
    case FUSE_FLUSH:
      return sizeof(fuse_flush_in);
    case FUSE_FSYNC:
    case FUSE_FSYNCDIR:
      return sizeof(fuse_fsync_in);
    case FUSE_SETXATTR:
      return FUSE_COMPAT_SETXATTR_IN_SIZE;  // the longer one is agreed on at INIT, and is not
    case FUSE_GETXATTR:
    case FUSE_LISTXATTR:
      return sizeof(fuse_getxattr_in);
    case FUSE_GETLK:
    case FUSE_SETLK:
    case FUSE_SETLKW:
      return sizeof(fuse_lk_in);
    case FUSE_ACCESS:
      return sizeof(fuse_access_in);
    case FUSE_FALLOCATE:
      return sizeof(fuse_fallocate_in);
    case FUSE_COPY_FILE_RANGE:
    case kCopyFileRange64:
      return sizeof(fuse_copy_file_range_in);
    case FUSE_LSEEK:
      return sizeof(fuse_lseek_in);
    default:
      return std::nullopt;
  }
}

bool OffersRing(uint64_t offered) { return (offered & kOverIoUring) != 0; }
bool OffersDirectMmap(uint64_t offered) { return (offered & kDirectIoAllowMmap) != 0; }

void AmendReply(const RequestFacts& request, std::span<iovec> parts) {
  fuse_out_header header{};
  if (parts.size() < 2 || parts[0].iov_len < sizeof(header)) {
    return;  // an error or an empty answer
  }
  std::memcpy(&header, parts[0].iov_base, sizeof(header));
  if (header.unique != request.unique || header.error != 0) {
    return;
  }
  switch (request.opcode) {
    case FUSE_INIT:
      return AmendInit(request, parts[1]);
    case FUSE_OPEN:
      return AmendOpen(parts[1], 0);
    case FUSE_CREATE:
    case FUSE_TMPFILE:
      return AmendOpen(parts[1], sizeof(fuse_entry_out));
    default:
      return;
  }
}

}  // namespace termfs::mount
