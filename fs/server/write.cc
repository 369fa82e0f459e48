// SPDX-License-Identifier: Apache-2.0
//
// The write path; service.h tells it as a whole.
#include "fs/server/service.h"

namespace termfs::fs::server {

struct FileService::WriteWork {
  uint64_t offset = 0;
  uint32_t length = 0;
  bool append = false;
  bool back = false;  // see kWriteBack
  bool clears_privileges = false;
  bool cleared = false;
  uint64_t end() const { return offset + length; }
  uint64_t first_page() const { return offset >> kPageBits; }
  uint64_t end_page() const { return PagesFor(end()); }
};

Result<Bytes> FileService::Write(const Request& request) {
  ASSIGN_OR_RETURN(const WriteBody body, DecodeFixed<WriteBody>(request.call.body()));
  if (body.length == 0 || body.length != request.call.in().length || body.length > tlib::kMaxTransfer ||
      (body.flags & ~uint32_t{kWriteAppend | kWriteClearsPrivileges | kWriteFirst | kWriteForgoesFirst | kWriteBack}) !=
          0 ||
      ((body.flags & kWriteAppend) != 0 && (body.flags & kWriteBack) != 0)) {
    return Status::Error(EINVAL, "bad write request");
  }
  if ((body.flags & kWriteFirst) != 0) {
    return WriteFirst(request, body);
  }
  if ((body.flags & kWriteForgoesFirst) != 0) {
    RETURN_IF_ERROR(HearOfFirst(request, body.ino, FirstWrite::kForgone));
  }
  WriteWork work{.offset = body.offset,
                 .length = body.length,
                 .append = (body.flags & kWriteAppend) != 0,
                 .back = (body.flags & kWriteBack) != 0,
                 .clears_privileges = (body.flags & kWriteClearsPrivileges) != 0};
  if (!work.append && (body.offset > kMaxFileBytes || body.length > kMaxFileBytes - body.offset)) {
    return Status::Error(EFBIG, "beyond the largest file");
  }
  if (request.receipt != nullptr && request.session.writes_lost.load(std::memory_order_relaxed)) {
    // Its place is in the store; its bytes are gone, and whoever sends them again has not been told that they were
    // there.
    work.append = false;
    work.offset = request.receipt->offset;
    return WriteAs({request.call, request.session}, body, work);
  }
  return WriteAs(request, body, work);
}

Result<Bytes> FileService::WriteAs(const Request& request, const WriteBody& body, WriteWork work) {
  ASSIGN_OR_RETURN(const InodeRef inode, FindOpen(request, body.ino));
  return WriteOpen(request, *inode, body, work);
}

Result<Bytes> FileService::WriteOpen(const Request& request, Inode& inode, const WriteBody& body, WriteWork work) {
  const bool first = (body.flags & kWriteFirst) != 0;
  const Status written = WriteInGate(request, inode, work);
  // Also when it failed: part of it may be there. The writer's kernel knows of size and times, of the mode it does not.
  // Of a first write nobody of an earlier start can know anything, and its client may be one of them.
  if (first) {
    coherence_.RecallWithoutWait(request.session.id, {inode.ino}, {});
  } else {
    coherence_.Recall(work.cleared ? 0 : request.session.id, {inode.ino}, {});
  }
  RETURN_IF_ERROR(written);
  coherence_.DropPages(inode, request.session.id);
  writes_.Add();
  write_bytes_.Add(work.length);
  request.session.traffic.write_bytes.fetch_add(work.length, std::memory_order_relaxed);
  Bytes reply;
  MutexLock lock(inode.mutex);
  const WriteReply head{.offset = work.offset, .size = inode.size, .mtime = inode.mtime.count()};
  const auto bytes = AsBytes(head);
  reply.assign(bytes.begin(), bytes.end());
  if (body.version != inode.version && !first) {  // to that, nobody listens
    EncodeMap(inode.Grant(request.session.id, work.first_page(), versions_), reply);
  }
  return reply;
}

Result<Bytes> FileService::WriteFirst(const Request& request, const WriteBody& body) {
  if (body.flags != kWriteFirst || body.offset != 0 || body.length > kMaxFirstWrite || request.stamp == nullptr) {
    return Status::Error(EINVAL, "bad first write");
  }
  RETURN_IF_ERROR(TakeFirst(request, body.ino));
  auto written = [&]() -> Result<Bytes> {
    ASSIGN_OR_RETURN(const InodeRef inode, FindOpenNow(request, body.ino));
    return WriteOpen(request, *inode, body, {.offset = 0, .length = body.length});
  }();
  EndFirst(request, body.ino, written.ok());
  return written;
}

Status FileService::WriteInGate(const Request& request, Inode& inode, WriteWork& work) {
  if (request.receipt != nullptr) {
    work.offset = request.receipt->offset;
    work.cleared = work.clears_privileges;  // by the first of them, if not now
    ASSIGN_OR_RETURN(const GateHold hold, GateHold::Enter(inode, GateMode::kExclusive, request.session));
    return ClearPrivileges(request, inode, work.clears_privileges, work.cleared);
  }
  if (!work.append && OnlyReplaces(inode, work.offset, work.length)) {
    ASSIGN_OR_RETURN(const GateHold hold, EnterToChange(request, inode, GateMode::kShared));
    if (OnlyReplaces(inode, work.offset, work.length)) {  // still, now that nobody can change it
      RETURN_IF_ERROR(Replace(request, inode, work));
      return ClearPrivileges(request, inode, work.clears_privileges, work.cleared);
    }
  }
  // A page that is written back makes no file larger, and its kernel may wait for it.
  const auto whose = work.back ? ShrunkFile::Whose::kOthers : ShrunkFile::Whose::kAll;
  ASSIGN_OR_RETURN(const GateHold hold, EnterToChange(request, inode, GateMode::kExclusive, whose));
  if (work.back && !CutToSize(inode, work)) {
    return Status::Ok();  // the file was cut off while the page was on its way
  }
  Status grown = Grow(request, inode, work);
  if (grown.ok()) {
    grown = ClearPrivileges(request, inode, work.clears_privileges, work.cleared);
  }
  if (!grown.ok()) {  // there may be pages where its map has a hole
    coherence_.RevokeOwn(inode, request.session.id);
  }
  return grown;
}

// Whether anything is left. A store through a mapping does not make a file longer.
bool FileService::CutToSize(Inode& inode, WriteWork& work) {
  MutexLock lock(inode.mutex);
  if (work.offset >= inode.size) {
    return false;
  }
  work.length = static_cast<uint32_t>(std::min<uint64_t>(work.length, inode.size - work.offset));
  return true;
}

bool FileService::OnlyReplaces(Inode& inode, uint64_t offset, uint64_t length) {
  MutexLock lock(inode.mutex);
  return !inode.map_in_doubt && offset + length <= inode.size &&
         inode.extents.Allocated(offset >> kPageBits, PagesFor(offset + length));
}

// Within the gate, which keeps the mode as it is, except for others that clear the same bits.
Status FileService::ClearPrivileges(const Request& request, Inode& inode, bool wanted, bool& cleared) {
  uint32_t mode;
  {
    MutexLock lock(inode.mutex);
    mode = WithoutPrivileges(inode.mode);
    if (!wanted || mode == inode.mode) {
      return Status::Ok();
    }
  }
  metadata::AttributeChange change;
  change.mode = mode & 07777;
  const Nanoseconds now = Now();
  RETURN_IF_ERROR(request.Blocking([&] { return names_.SetAttr(inode.ino, change, now); }).status());
  NoteChanged(inode.ino, now);
  cleared = true;
  MutexLock lock(inode.mutex);
  inode.mode = mode;
  return Status::Ok();
}

Status FileService::Replace(const Request& request, Inode& inode, WriteWork& work) {
  Status applied = Apply(request, inode, work);
  Touch(inode, work.offset, work.end());  // also when it failed: part of it may be there
  return applied;
}

Status FileService::Grow(const Request& request, Inode& inode, WriteWork& work) {
  uint64_t old_size;
  {
    MutexLock lock(inode.mutex);
    old_size = inode.size;
  }
  if (work.append) {
    work.offset = old_size;
    if (work.length > kMaxFileBytes - work.offset) {
      return Status::Error(EFBIG, "beyond the largest file");
    }
  }
  const bool grows = work.end() > old_size;
  RETURN_IF_ERROR(LoadExtents(request, inode, work.first_page(), work.end_page()));
  bool has_holes;
  bool in_doubt;
  {
    MutexLock lock(inode.mutex);
    in_doubt = inode.map_in_doubt;
    has_holes = !inode.extents.Allocated(work.first_page(), work.end_page());
  }
  if (has_holes || grows || in_doubt) {
    RETURN_IF_ERROR(coherence_.Revoke(inode, request.session.id));
  }
  if (work.first_page() > PagesFor(old_size)) {
    RETURN_IF_ERROR(GiveAheadBack(request, inode));
    MutexLock lock(inode.mutex);
    has_holes = !inode.extents.Allocated(work.first_page(), work.end_page());
  }
  if (has_holes) {
    const uint64_t ahead = work.offset <= old_size ? PagesAhead(inode, work.offset, work.end()) : 0;
    RETURN_IF_ERROR(AllocatePages(request, inode, work.first_page(), work.end_page(), ahead));
    MutexLock lock(inode.mutex);
    const bool inside = work.first_page() < PagesFor(old_size);
    inode.NewVersion(versions_, inside ? Inode::Change::kAny : Inode::Change::kGrowth);
  }
  if (!grows) {
    return Replace(request, inode, work);
  }
  RETURN_IF_ERROR(CleanTail(request, inode));
  const Nanoseconds now = Now();
  Status grown = Apply(request, inode, work);
  if (grown.ok()) {
    grown = CommitSize(request, inode, work.end(), work.offset, now);
  }
  if (!grown.ok()) {
    Touch(inode, work.offset, work.end());  // part of it may be there
  }
  MutexLock lock(inode.mutex);
  inode.unsynced.Add(work.first_page(), work.end_page());
  inode.tail_dirty |= !grown.ok();  // bytes may lie beyond the size
  return grown;
}

Status FileService::Apply(const Request& request, Inode& inode, const WriteWork& work) {
  ASSIGN_OR_RETURN(const auto segments, SegmentsOf(request, inode, work.first_page(), work.end_page()));
  const uint64_t frees = inode.frees.load(std::memory_order_acquire);
  const Session& session = request.session;
  // The gate keeps the pages; this is for a session that is cut off while its bytes are on the way.
  const auto check = [&]() -> Status {
    if (session.expelled.load(std::memory_order_relaxed)) {
      return Status::Error(ECANCELED, "the session is gone");
    }
    return inode.frees.load(std::memory_order_acquire) == frees ? Status::Ok()
                                                                : Status::Error(EAGAIN, "the pages left the file");
  };
  for (const Segment& s : segments) {
    const uint64_t begin = std::max(work.offset, s.file_page << kPageBits);
    const uint64_t end = std::min(work.end(), s.end() << kPageBits);
    if (begin >= end) {
      continue;
    }
    if (s.is_hole()) {
      return Status::Error(EIO, "a page was not given space");
    }
    RETURN_IF_ERROR(region().WriteFrom(
        request.call, RegionOffset{(s.region_page << kPageBits) + begin - (s.file_page << kPageBits)},
        static_cast<uint32_t>(begin - work.offset), static_cast<uint32_t>(end - begin), check));
  }
  return Status::Ok();
}

Status FileService::CommitSize(const Request& request, Inode& inode, uint64_t size, uint64_t offset, Nanoseconds now) {
  Inode::Times times;
  {
    MutexLock lock(inode.mutex);
    times = inode.TimesAfterChange(now);
  }
  RETURN_IF_ERROR(request
                      .Blocking([&] {
                        return names_.SetSizeAndTimes(inode.ino, size, metadata::SizeRule::kIfLarger, times.mtime,
                                                      times.ctime, request.stamp, offset);
                      })
                      .status());
  reclaimer_.NoteChange();
  MutexLock lock(inode.mutex);
  inode.size = size;
  inode.SetTimes(times);
  inode.NewVersion(versions_, Inode::Change::kGrowth);
  return Status::Ok();
}

void FileService::Touch(Inode& inode, uint64_t begin, uint64_t end) {
  bool was_dirty;
  {
    MutexLock lock(inode.mutex);
    was_dirty = inode.times_dirty;
    inode.Touch(Now());
    inode.unsynced.Add(begin >> kPageBits, PagesFor(end));
  }
  if (!was_dirty) {
    reclaimer_.NoteDirty(inode.ino);
  }
}

}  // namespace termfs::fs::server
