// SPDX-License-Identifier: Apache-2.0
//
// A read by the server, for a client that has no map of the place, or whose map is revoked all the time. It brings the
// map along, so that the next read needs no server.
#include "fs/server/service.h"

namespace termfs::fs::server {

Result<Bytes> FileService::Read(const Request& request) {
  ASSIGN_OR_RETURN(const ReadBody body, DecodeFixed<ReadBody>(request.call.body()));
  if (body.length > request.call.out().length || body.length > tlib::kMaxTransfer) {
    return Status::Error(EINVAL, "the buffer is smaller than the read");
  }
  if ((body.flags & ~uint32_t{kReadKeepsAccessTime}) != 0) {
    return Status::Error(EINVAL, "unknown flags of a read");
  }
  if (body.offset > kMaxFileBytes) {
    return Status::Error(EINVAL, "offset beyond any file");
  }
  ASSIGN_OR_RETURN(const InodeRef inode, FindOpen(request, body.ino));
  reads_.Add();
  if ((body.flags & kReadKeepsAccessTime) == 0) {
    NoteAccess(*inode, request.session.id);
  }
  constexpr int kAttempts = 1000;  // each lost to a truncation or a punched hole
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    uint64_t length;
    uint64_t frees;
    std::vector<Segment> segments;
    const uint64_t page = body.offset >> kPageBits;
    {
      MutexLock lock(inode->mutex);
      length = inode->size > body.offset ? std::min<uint64_t>(body.length, inode->size - body.offset) : 0;
    }
    const uint64_t end_page = length > 0 ? PagesFor(body.offset + length) : page;
    if (length > 0) {
      RETURN_IF_ERROR(LoadExtents(request, *inode, page, end_page));
    }
    {
      MutexLock lock(inode->mutex);
      frees = inode->frees.load(std::memory_order_relaxed);
      if ((length > 0 && inode->size < body.offset + length) ||
          inode->extents.FirstUnknown(page, end_page) < end_page) {
        continue;
      }
      segments = inode->extents.Cut(page, end_page);
    }
    const Status delivered = Deliver(request, body.offset, length, segments);
    MutexLock lock(inode->mutex);
    if (inode->frees.load(std::memory_order_relaxed) != frees) {
      continue;  // the pages may have been another file's already, or the region's no more
    }
    RETURN_IF_ERROR(delivered);
    read_bytes_.Add(length);
    request.session.traffic.read_bytes.fetch_add(length, std::memory_order_relaxed);
    Bytes reply;
    const ReadReply head{.length = static_cast<uint32_t>(length)};
    const auto bytes = AsBytes(head);
    reply.assign(bytes.begin(), bytes.end());
    EncodeMap(inode->Grant(request.session.id, page, versions_), reply);
    return reply;
  }
  return Status::Error(EBUSY, "the file is truncated all the time");
}

Status FileService::Deliver(const Request& request, uint64_t offset, uint64_t length,
                            const std::vector<Segment>& segments) {
  const auto each = [&](const auto& part) -> Status {
    for (const Segment& s : segments) {
      const uint64_t begin = std::max(offset, s.file_page << kPageBits);
      const uint64_t end = std::min(offset + length, s.end() << kPageBits);
      if (begin < end && !s.is_hole()) {
        RETURN_IF_ERROR(part(RegionOffset{(s.region_page << kPageBits) + begin - (s.file_page << kPageBits)},
                             begin - offset, end - begin));
      }
    }
    return Status::Ok();
  };
  const bool holes = std::any_of(segments.begin(), segments.end(), [](const Segment& s) { return s.is_hole(); });
  if (!holes) {
    return each([&](RegionOffset from, uint64_t to, uint64_t bytes) {
      return region().ReadTo(request.call, from, static_cast<uint32_t>(to), static_cast<uint32_t>(bytes));
    });
  }
  Bytes whole(length);  // zeros where there is a hole
  RETURN_IF_ERROR(each([&](RegionOffset from, uint64_t to, uint64_t bytes) {
    return region().Read(from, std::span(whole).subspan(to, bytes));
  }));
  return request.call.PushBulk(whole);
}

}  // namespace termfs::fs::server
