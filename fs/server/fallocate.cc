// SPDX-License-Identifier: Apache-2.0
//
// fallocate and SEEK_DATA, SEEK_HOLE. Allocated pages within the size count as data, written or not.
#include <fcntl.h>
#include <linux/falloc.h>
#include <unistd.h>

#include "base/log.h"
#include "fs/proto/codec.h"
#include "fs/server/service.h"

namespace termfs::fs::server {

Result<Bytes> FileService::Allocate(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Allocate>(request.call.body()));
  if (body.length == 0) {
    return Status::Error(EINVAL, "nothing to allocate");
  }
  if (body.offset > kMaxFileBytes || body.length > kMaxFileBytes - body.offset) {
    return Status::Error(EFBIG, "beyond the largest file");
  }
  const bool keep_size = (body.mode & FALLOC_FL_KEEP_SIZE) != 0;
  const int what = body.mode & ~FALLOC_FL_KEEP_SIZE;
  if ((what != 0 && what != FALLOC_FL_PUNCH_HOLE && what != FALLOC_FL_ZERO_RANGE) ||
      (what == FALLOC_FL_PUNCH_HOLE && !keep_size)) {
    return Status::Error(EOPNOTSUPP, "fallocate mode");
  }
  const uint64_t end = body.offset + body.length;
  ASSIGN_OR_RETURN(const InodeRef inode, FindOpen(request, body.ino));
  const Status done = AllocateInGate(request, *inode, what, body.offset, end, keep_size, body.dropped);
  coherence_.Recall(request.session.id, {inode->ino}, {});  // also when it failed: part of it may be done
  RETURN_IF_ERROR(done);
  if (what != 0) {
    coherence_.DropPages(*inode, request.session.id);
  }
  return Bytes{};
}

Status FileService::AllocateInGate(const Request& request, Inode& inode, int what, uint64_t begin, uint64_t end,
                                   bool keep_size, uint64_t dropped) {
  ASSIGN_OR_RETURN(const GateHold hold, EnterToChange(request, inode, GateMode::kExclusive));
  {
    MutexLock lock(inode.mutex);
    inode.Drop(request.session.id, dropped);
  }
  RETURN_IF_ERROR(coherence_.Revoke(inode, 0));
  Status done;
  if (what == FALLOC_FL_PUNCH_HOLE) {
    done = Punch(request, inode, begin, end);
  } else if (what == FALLOC_FL_ZERO_RANGE) {
    done = ZeroRange(request, inode, begin, end, keep_size);
  } else {
    done = Preallocate(request, inode, begin, end, keep_size);
  }
  MutexLock lock(inode.mutex);
  inode.NewVersion(versions_, Inode::Change::kAny);
  return done;
}

Status FileService::Preallocate(const Request& request, Inode& inode, uint64_t begin, uint64_t end, bool keep_size) {
  const uint64_t first_page = begin >> kPageBits;
  const uint64_t end_page = PagesFor(end);
  RETURN_IF_ERROR(CleanTail(request, inode));
  RETURN_IF_ERROR(ForgetAhead(request, inode));
  ASSIGN_OR_RETURN(std::vector<Segment> holes, SegmentsOf(request, inode, first_page, end_page));
  std::erase_if(holes, [](const Segment& s) { return !s.is_hole(); });
  uint64_t size;
  {
    MutexLock lock(inode.mutex);
    size = inode.size;
  }
  if (!holes.empty()) {
    RETURN_IF_ERROR(FillHoles(request, inode, first_page, end_page, holes));
  }
  if (!keep_size && end > size) {
    return CommitSize(request, inode, end, begin, Now());
  }
  Touch(inode, begin, begin);
  return Status::Ok();
}

// What lies behind the end is the caller's from now on, so none of it may be there for growth.
Status FileService::ForgetAhead(const Request& request, Inode& inode) {
  RETURN_IF_ERROR(GiveAheadBack(request, inode));
  bool noted;
  {
    MutexLock lock(inode.mutex);
    noted = std::exchange(inode.ahead_noted, false);
  }
  if (!noted) {
    return Status::Ok();
  }
  Status forgotten = request.Blocking([&] { return names_.ForgetAhead(inode.ino); });
  if (!forgotten.ok()) {
    MutexLock lock(inode.mutex);
    inode.ahead_noted = true;
  }
  return forgotten;
}

// All or nothing: what cannot fit is refused before anything is taken, and what others took meanwhile, or a region that
// is about to end, has what was taken given back.
Status FileService::FillHoles(const Request& request, Inode& inode, uint64_t page, uint64_t end,
                              std::span<const Segment> holes) {
  uint64_t needed = 0;
  for (const Segment& hole : holes) {
    needed += hole.pages;
  }
  const metadata::SpaceUse use = names_.StatFs();
  const bool may_fit = needed <= use.free_pages + use.pending_pages + replaced_.use().pages;
  if (may_fit && needed > use.free_pages) {
    // Some of what is pending may lie where nothing is given out any more.
    reclaimer_.WaitForSpace(std::chrono::steady_clock::now() + options_.space_timeout);
  }
  if (!may_fit || needed > names_.StatFs().free_pages) {
    return Status::Error(ENOSPC, "not enough free space");
  }
  Status filled = AllocatePages(request, inode, page, end, 0);
  for (const Segment& hole : holes) {
    if (filled.ok()) {
      break;
    }
    if (const Status given_back = FreePages(request, inode, hole.file_page, hole.end()); !given_back.ok()) {
      LOG_WARNING("inode {} keeps space that it was given in part: {}", inode.ino, given_back.ToDebugString());
      break;
    }
  }
  return filled;
}

// Within the gate, with all maps revoked.
Status FileService::FreePages(const Request& request, Inode& inode, uint64_t page, uint64_t end) {
  {
    MutexLock lock(inode.mutex);
    inode.Remove(page, end);
  }
  bool more = true;
  while (more) {
    const auto step = request.Blocking([&] { return names_.PunchExtents(inode.ino, page, end - page, Now()); });
    if (!step.ok()) {
      MutexLock lock(inode.mutex);
      inode.ForgetExtents();
      return step.status();
    }
    more = *step;
  }
  reclaimer_.NoteChange();
  reclaimer_.Kick();
  return Status::Ok();
}

// Of the last page there is nothing left when the hole reaches beyond the size. A hole there takes all of the space
// ahead.
Status FileService::Punch(const Request& request, Inode& inode, uint64_t begin, uint64_t end) {
  const uint64_t first_whole = PagesFor(begin);
  uint64_t end_whole = end >> kPageBits;
  uint64_t size;
  {
    MutexLock lock(inode.mutex);
    size = inode.size;
  }
  if (end > size) {
    end_whole = std::max(end_whole, PagesFor(size));
    RETURN_IF_ERROR(GiveAheadBack(request, inode));
  }
  if (first_whole < end_whole) {
    RETURN_IF_ERROR(FreePages(request, inode, first_whole, end_whole));
    RETURN_IF_ERROR(ZeroBytes(request, inode, begin, first_whole << kPageBits));
    RETURN_IF_ERROR(ZeroBytes(request, inode, end_whole << kPageBits, end));
  } else {
    RETURN_IF_ERROR(ZeroBytes(request, inode, begin, end));
  }
  Touch(inode, begin, end);
  return Status::Ok();
}

Status FileService::ZeroRange(const Request& request, Inode& inode, uint64_t begin, uint64_t end, bool keep_size) {
  RETURN_IF_ERROR(ZeroBytes(request, inode, begin, end));
  RETURN_IF_ERROR(Preallocate(request, inode, begin, end, keep_size));
  Touch(inode, begin, end);
  return Status::Ok();
}

Result<Bytes> FileService::Seek(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Seek>(request.call.body()));
  if (body.whence != SEEK_DATA && body.whence != SEEK_HOLE) {
    return Status::Error(EINVAL, "not SEEK_DATA or SEEK_HOLE");
  }
  ASSIGN_OR_RETURN(const InodeRef inode, FindOpen(request, body.ino));
  uint64_t stride = uint64_t{1} << 8;  // pages looked at in one go; more and more, as a hole may be without end
  uint64_t size;
  {
    MutexLock lock(inode->mutex);
    size = inode->size;
  }
  if (body.offset >= size) {
    return Status::Error(ENXIO, "beyond the end of the file");
  }
  wire::PositionT reply;
  reply.offset = size;  // the end counts as a hole
  const bool want_hole = body.whence == SEEK_HOLE;
  for (uint64_t page = body.offset >> kPageBits; page < PagesFor(size); stride *= 2) {
    const uint64_t end = std::min(page + stride, PagesFor(size));
    ASSIGN_OR_RETURN(const auto segments, SegmentsOf(request, *inode, page, end));
    for (const Segment& s : segments) {
      if (s.is_hole() == want_hole) {
        reply.offset = std::max(body.offset, s.file_page << kPageBits);
        return Encode<wire::Position>(reply);
      }
    }
    page = end;
  }
  if (!want_hole) {
    return Status::Error(ENXIO, "no data up to the end of the file");
  }
  return Encode<wire::Position>(reply);
}

}  // namespace termfs::fs::server
