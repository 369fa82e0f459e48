// SPDX-License-Identifier: Apache-2.0
//
// Copies of ranges, between two files or within one, that pass through no client. The source is read as every reader
// reads, outside of its gate; the target is changed as by a write, alone in its gate. As nobody holds two gates, copies
// to and fro do not wait for each other.
//
// A request does a bounded part, whose last step is one transaction: size, times, and the receipt, which says how many
// bytes were copied. A request whose server died before that is carried out anew; by then the source may have changed,
// as it may before any copy.
//
// A hole of the source takes no space in the target: where that has none it keeps none, and elsewhere there are zeros.
#include <algorithm>
#include <array>
#include <memory>

#include "fs/proto/codec.h"
#include "fs/server/service.h"

namespace termfs::fs::server {

namespace {

constexpr uint64_t kDataPerRequest = uint64_t{8} << 20;  // for so long nobody else writes to the target
constexpr uint64_t kMostPerRequest = uint64_t{1} << 30;  // holes included
constexpr uint64_t kBufferPages = 128;

struct alignas(kPageSize) BufferPage {
  std::array<std::byte, kPageSize> bytes;
};

}  // namespace

struct FileService::CopyWork {
  Inode& source;
  Inode& target;
  uint64_t from = 0;
  uint64_t to = 0;
  uint64_t available = 0;
  uint64_t length = 0;  // that this request copies, at most
  uint64_t budget = kDataPerRequest;
  uint64_t done = 0;
  uint64_t reached = 0;  // in the target; so far bytes may have changed
  bool cleared = false;
  std::unique_ptr<BufferPage[]> buffer{};

  uint64_t read_at() const { return from + done; }
  uint64_t write_at() const { return to + done; }
  uint64_t end() const { return std::max(reached, write_at()); }
  // The part of the buffer in which what goes to write_at() lies as in its page, `bytes` at most.
  std::span<std::byte> Place(uint64_t bytes) {
    if (buffer == nullptr) {
      buffer = std::make_unique_for_overwrite<BufferPage[]>(kBufferPages);
    }
    const uint64_t in_page = write_at() % kPageSize;
    const uint64_t fits = kBufferPages * kPageSize - in_page;
    return {buffer[0].bytes.data() + in_page, std::min(bytes, fits)};
  }
};

Result<Bytes> FileService::Copy(const Request& request) {
  ASSIGN_OR_RETURN(auto body, Decode<wire::Copy>(request.call.body()));
  if (body.target_offset >= kMaxFileBytes) {
    return Status::Error(EFBIG, "beyond the largest file");
  }
  ASSIGN_OR_RETURN(const InodeRef source, FindOpen(request, body.ino));
  ASSIGN_OR_RETURN(const InodeRef target, FindOpen(request, body.target));
  CopyWork work{.source = *source, .target = *target, .from = body.offset, .to = body.target_offset};
  if (request.receipt != nullptr && request.session.writes_lost.load(std::memory_order_relaxed)) {
    body.length = std::min(body.length, request.receipt->offset);  // what is in the store; its bytes are gone
    return CopyAs({request.call, request.session}, body, work);
  }
  return CopyAs(request, body, work);
}

Result<Bytes> FileService::CopyAs(const Request& request, const wire::CopyT& body, CopyWork& work) {
  const Status copied = CopyInGate(request, body, work);
  if (work.done > 0 || work.reached > 0) {
    // The writer's kernel knows of size and times if all went well, of the mode it does not.
    coherence_.Recall(work.cleared || !copied.ok() ? 0 : request.session.id, {work.target.ino}, {});
    coherence_.DropPages(work.target, request.session.id);
  }
  if (work.done > 0 && !body.keeps_atime) {
    NoteAccess(work.source, 0);
  }
  RETURN_IF_ERROR(copied);
  copies_.Add();
  copied_bytes_.Add(work.done);
  wire::CopiedT reply;
  reply.bytes = work.done;
  reply.available = work.available;
  return Encode<wire::Copied>(reply);
}

Status FileService::CopyInGate(const Request& request, const wire::CopyT& body, CopyWork& work) {
  Inode& target = work.target;
  ASSIGN_OR_RETURN(const GateHold hold, EnterToChange(request, target, GateMode::kExclusive));
  uint64_t old_size;
  {
    MutexLock lock(target.mutex);
    target.Drop(request.session.id, body.dropped);
    old_size = target.size;
  }
  if (request.receipt != nullptr) {
    work.done = work.available = std::min(body.length, request.receipt->offset);
    work.cleared = body.clears_privileges;  // by the first of them, if not now
    return ClearPrivileges(request, target, body.clears_privileges, work.cleared);
  }
  {
    MutexLock lock(work.source.mutex);
    const uint64_t left = work.source.size - std::min(work.source.size, work.from);
    work.available = std::min({body.length, left, kMaxFileBytes - work.to});
  }
  if (work.available == 0) {
    return Status::Ok();
  }
  const uint64_t distance = work.from > work.to ? work.from - work.to : work.to - work.from;
  if (&work.source == &target && distance < work.available) {
    return Status::Error(EINVAL, "the ranges overlap");
  }
  work.length = std::min(work.available, kMostPerRequest);
  return CopyRuns(request, work, old_size, body.clears_privileges);
}

Status FileService::CopyRuns(const Request& request, CopyWork& work, uint64_t old_size, bool clears_privileges) {
  Inode& target = work.target;
  if (!OnlyReplaces(target, work.to, work.length)) {
    RETURN_IF_ERROR(coherence_.Revoke(target, 0));
  }
  if (work.to + work.length > old_size) {
    RETURN_IF_ERROR(GiveAheadBack(request, target));  // it may grow by a hole
    RETURN_IF_ERROR(CleanTail(request, target));
  }
  Status copied;
  while (copied.ok() && work.done < work.length) {
    copied = CopyRun(request, work);
  }
  if (work.done > 0) {
    // What follows failed: then this was all, and who asks for the rest is told why.
    copied = CommitSize(request, target, std::max(old_size, work.write_at()), work.done, Now());
  } else if (work.reached > 0) {
    Touch(target, work.to, work.reached);
  }
  {
    MutexLock lock(target.mutex);
    target.unsynced.Add(work.to >> kPageBits, PagesFor(work.end()));
    target.tail_dirty |= work.reached > target.size;
  }
  RETURN_IF_ERROR(copied);
  return ClearPrivileges(request, target, clears_privileges && work.done > 0, work.cleared);
}

Status FileService::CopyRun(const Request& request, CopyWork& work) {
  if (request.session.expelled.load(std::memory_order_relaxed)) {
    return Status::Error(ECANCELED, "the session is gone");
  }
  ASSIGN_OR_RETURN(const Run run,
                   NextRun(request, work.source, work.read_at(), std::min(work.length - work.done, kDataPerRequest)));
  const uint64_t bytes = run.hole ? run.bytes : std::min(run.bytes, work.budget);
  if (bytes == 0) {
    work.length = work.done;
    return Status::Ok();
  }
  if (!run.hole) {
    return CopyData(request, work, bytes);
  }
  RETURN_IF_ERROR(ZeroBytes(request, work.target, work.write_at(), work.write_at() + bytes));
  work.done += bytes;
  return Status::Ok();
}

Status FileService::CopyData(const Request& request, CopyWork& work, uint64_t bytes) {
  ASSIGN_OR_RETURN(bytes, SpaceFor(request, work.target, work.write_at(), bytes));
  const uint64_t end = work.done + bytes;
  while (work.done < end) {
    const std::span<std::byte> place = work.Place(end - work.done);
    ASSIGN_OR_RETURN(const size_t got, ReadStable(request, work.source, work.read_at(), place));
    if (got == 0) {  // somebody has cut it
      work.length = work.done;
      return Status::Ok();
    }
    work.reached = work.write_at() + got;
    RETURN_IF_ERROR(WriteAllocated(request, work.target, work.write_at(), place.first(got)));
    work.done += got;
    work.budget -= got;
  }
  return Status::Ok();
}

Result<FileService::Run> FileService::NextRun(const Request& request, Inode& inode, uint64_t offset, uint64_t limit) {
  constexpr int kAttempts = 1000;  // each lost to a truncation or a punched hole
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    uint64_t length;
    {
      MutexLock lock(inode.mutex);
      length = inode.size > offset ? std::min(limit, inode.size - offset) : 0;
    }
    if (length == 0) {
      return Run{};
    }
    const uint64_t page = offset >> kPageBits;
    const uint64_t end_page = PagesFor(offset + length);
    RETURN_IF_ERROR(LoadExtents(request, inode, page, end_page));
    MutexLock lock(inode.mutex);
    if (inode.extents.FirstUnknown(page, end_page) < end_page) {
      continue;
    }
    const std::vector<Segment> segments = inode.extents.Cut(page, end_page);
    const bool hole = segments.front().is_hole();
    const auto other = std::find_if(segments.begin(), segments.end(),
                                    [hole](const Segment& segment) { return segment.is_hole() != hole; });
    return Run{.bytes = std::min(length, (std::prev(other)->end() << kPageBits) - offset), .hole = hole};
  }
  return Status::Error(EBUSY, "the file is truncated all the time");
}

Result<size_t> FileService::ReadStable(const Request& request, Inode& inode, uint64_t offset, std::span<std::byte> to) {
  constexpr int kAttempts = 1000;  // as NextRun's
  const uint64_t page = offset >> kPageBits;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    uint64_t length;
    uint64_t frees;
    std::vector<Segment> segments;
    RETURN_IF_ERROR(LoadExtents(request, inode, page, PagesFor(offset + to.size())));
    {
      MutexLock lock(inode.mutex);
      frees = inode.frees.load(std::memory_order_relaxed);
      length = inode.size > offset ? std::min<uint64_t>(to.size(), inode.size - offset) : 0;
      const uint64_t end_page = PagesFor(offset + length);
      if (length > 0 && inode.extents.FirstUnknown(page, end_page) < end_page) {
        continue;
      }
      segments = inode.extents.Cut(page, end_page);
    }
    Status read;
    for (auto s = segments.begin(); length > 0 && read.ok() && s != segments.end(); ++s) {
      const uint64_t begin = std::max(offset, s->file_page << kPageBits);
      const uint64_t end = std::min(offset + length, s->end() << kPageBits);
      const std::span<std::byte> part = to.subspan(begin - offset, end - begin);
      if (s->is_hole()) {
        std::fill(part.begin(), part.end(), std::byte{0});
      } else {
        read = region().Read({(s->region_page << kPageBits) + begin - (s->file_page << kPageBits)}, part);
      }
    }
    MutexLock lock(inode.mutex);
    if (inode.frees.load(std::memory_order_relaxed) != frees) {
      continue;  // the pages may have been another file's already, or the region's no more
    }
    RETURN_IF_ERROR(read);
    return static_cast<size_t>(length);
  }
  return Status::Error(EBUSY, "the file is truncated all the time");
}

Result<uint64_t> FileService::SpaceFor(const Request& request, Inode& inode, uint64_t offset, uint64_t bytes) {
  const uint64_t page = offset >> kPageBits;
  while (true) {
    const uint64_t end = PagesFor(offset + bytes);
    RETURN_IF_ERROR(LoadExtents(request, inode, page, end));
    {
      MutexLock lock(inode.mutex);
      if (inode.extents.Allocated(page, end)) {
        return bytes;
      }
    }
    const Status given = AllocatePages(request, inode, page, end, 0);
    if (given.ok()) {
      MutexLock lock(inode.mutex);
      inode.NewVersion(versions_, Inode::Change::kAny);
      return bytes;
    }
    if ((given.code() != ENOSPC && given.code() != EDQUOT) || end - page == 1) {
      return given;
    }
    bytes = ((page + (end - page) / 2) << kPageBits) - offset;
  }
}

Status FileService::WriteAllocated(const Request& request, Inode& inode, uint64_t offset,
                                   std::span<const std::byte> from) {
  ASSIGN_OR_RETURN(const auto segments,
                   SegmentsOf(request, inode, offset >> kPageBits, PagesFor(offset + from.size())));
  for (const Segment& s : segments) {
    const uint64_t begin = std::max(offset, s.file_page << kPageBits);
    const uint64_t end = std::min(offset + from.size(), s.end() << kPageBits);
    if (s.is_hole()) {
      return Status::Error(EIO, "a page was not given space");
    }
    RETURN_IF_ERROR(region().Write({(s.region_page << kPageBits) + begin - (s.file_page << kPageBits)},
                                   from.subspan(begin - offset, end - begin)));
  }
  return Status::Ok();
}

}  // namespace termfs::fs::server
