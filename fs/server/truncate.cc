// SPDX-License-Identifier: Apache-2.0
//
// Size changes. Bytes of allocated pages beyond the size are zeros (inode.h, invariant 2), so growing a file shows
// zeros without a look at its pages. What cuts it within a page leaves the rest of that page as it is; the next growth
// cleans it first, in memory. The SSD may have the old bytes for longer, and the growth may be durable before the zeros
// are; so the truncation notes in the store from where on that page is not to be believed there, and start after a loss
// of memory zeroes it (RestoreCuts). The note goes with the next fsync, or with the reclaimer. After a failure or a
// restart that left the tail in doubt, growth zeroes it durably.
#include "fs/server/service.h"

namespace termfs::fs::server {

Status FileService::EnsureLoaded(const Request& request, Inode& inode) {
  {
    MutexLock lock(inode.mutex);
    if (inode.loaded) {
      return Status::Ok();
    }
  }
  ASSIGN_OR_RETURN(const auto attributes, request.Blocking([&] { return names_.GetAttr(inode.ino); }));
  if (attributes.is_directory()) {
    return Status::Error(EISDIR, "a directory has no data");
  }
  if (attributes.type() != metadata::FileType::kRegular) {
    return Status::Error(EINVAL, "not a regular file");
  }
  MutexLock lock(inode.mutex);
  if (!inode.loaded) {
    LoadInode(inode, attributes);
  }
  return Status::Ok();
}

Status FileService::Truncate(const Request& request, Inode& inode, uint64_t size, bool partly, ShrunkFile& shrunk) {
  uint64_t old_size;
  metadata::TailCut cut;
  {
    MutexLock lock(inode.mutex);
    old_size = inode.size;
    cut = inode.cut;
  }
  const bool within_page = size < old_size && size % kPageSize != 0;
  if (within_page && cut && cut.page() < size >> kPageBits) {  // one is noted at a time
    RETURN_IF_ERROR(ForgetCut(request, inode, cut));
  }
  // Pages may leave the file, so no map stays, the caller's neither.
  RETURN_IF_ERROR(coherence_.Revoke(inode, 0));
  if (size > old_size) {
    RETURN_IF_ERROR(GiveAheadBack(request, inode));
    RETURN_IF_ERROR(CleanTail(request, inode));
  } else {
    MutexLock lock(inode.mutex);
    inode.size = size;
    inode.Remove(PagesFor(size), kMaxFilePages);
    inode.ahead_end = 0;
    inode.NewVersion(versions_, Inode::Change::kAny);
  }
  const auto truncated = request.Blocking([&]() -> Result<metadata::Namespace::Truncated> {
    RETURN_IF_ERROR(Reclaimer::WriteTimes(names_, inode));  // or its mtime could be before one that was seen
    return names_.Truncate(inode.ino, size, Now(), request.stamp, partly);
  });
  reclaimer_.NoteChange();
  if (!truncated.ok()) {
    MutexLock lock(inode.mutex);
    inode.size = old_size;
    inode.tail_dirty = true;
    inode.only_cut = false;
    inode.ForgetExtents();
    inode.NewVersion(versions_, Inode::Change::kAny);
    return truncated.status();
  }
  {
    MutexLock lock(inode.mutex);
    inode.size = size;
    inode.SetTimes({.mtime = truncated->attributes.mtime, .ctime = truncated->attributes.ctime});
    inode.NewVersion(versions_, Inode::Change::kAny);
    inode.cut = truncated->attributes.cut;
    if (size < old_size) {
      inode.tail_dirty = within_page;
      inode.only_cut = within_page && inode.cut;
    }
  }
  if (size < old_size) {
    shrunk.Begin(truncated->attributes.generation);
  }
  if (truncated->attributes.cut) {
    reclaimer_.NoteCut(inode.ino);
  }
  if (truncated->more) {
    reclaimer_.AddTruncation(inode.ino);
  } else {
    reclaimer_.Kick();
  }
  return Status::Ok();
}

// Before the size leaps over space that was set aside for the file to grow into, which is to be a hole; or before a
// caller's wish says what lies behind the end.
Status FileService::GiveAheadBack(const Request& request, Inode& inode) {
  uint64_t begin;
  uint64_t end;
  {
    MutexLock lock(inode.mutex);
    begin = PagesFor(inode.size);
    end = std::exchange(inode.ahead_end, 0);
  }
  if (begin >= end) {
    return Status::Ok();
  }
  Status freed = FreePages(request, inode, begin, end);
  if (!freed.ok()) {
    MutexLock lock(inode.mutex);
    inode.ahead_end = end;
  }
  return freed;
}

Status FileService::CleanTail(const Request& request, Inode& inode) {
  uint64_t size;
  bool only_cut;
  {
    MutexLock lock(inode.mutex);
    if (!inode.tail_dirty) {
      return Status::Ok();
    }
    size = inode.size;
    only_cut = inode.only_cut;
  }
  if (only_cut) {
    RETURN_IF_ERROR(ZeroBytes(request, inode, size, RoundUpToPage(size)));
  } else {
    ASSIGN_OR_RETURN(const bool zero, TailIsZero(request, inode, size));
    // Until all that a killed server left dirty is flushed, or what could not be flushed, zeros in memory do not say
    // what is on the SSD.
    if (!zero || !reclaimer_.settled()) {
      RETURN_IF_ERROR(ZeroTail(request, inode, size));
    }
  }
  RETURN_IF_ERROR(ZeroBytes(request, inode, PagesFor(size) << kPageBits, kMaxFilePages << kPageBits));
  MutexLock lock(inode.mutex);
  inode.tail_dirty = inode.only_cut = false;
  return Status::Ok();
}

// REQUIRES: where the file reaches beyond the cut it is clean.
Status FileService::ForgetCut(const Request& request, Inode& inode, const metadata::TailCut& cut) {
  RETURN_IF_ERROR(FlushPages(request, inode, cut.page(), cut.page() + 1));
  RETURN_IF_ERROR(request.Blocking([&] { return names_.ForgetCut(inode.ino, cut); }));
  MutexLock lock(inode.mutex);
  if (inode.cut == cut) {
    inode.cut = {};
  }
  return Status::Ok();
}

// What the file shows beyond a cut is on the SSD when this returns, and the store says so.
Status FileService::SettleCut(const Request& request, Inode& inode) {
  constexpr int kAttempts = 1000;  // each lost to another truncation
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    metadata::TailCut cut;
    bool dirty;
    {
      MutexLock lock(inode.mutex);
      cut = inode.cut;
      if (!cut || inode.size <= cut.from) {
        return Status::Ok();
      }
      dirty = inode.tail_dirty;
    }
    if (dirty) {
      ASSIGN_OR_RETURN(const GateHold hold, GateHold::Enter(inode, GateMode::kExclusive, request.session));
      RETURN_IF_ERROR(request.Blocking([&] { return names_.Sync(); }));  // zeros are no news to the size
      RETURN_IF_ERROR(CleanTail(request, inode));
      MutexLock lock(inode.mutex);
      cut = inode.cut;
    }
    if (cut) {
      RETURN_IF_ERROR(ForgetCut(request, inode, cut));
    }
  }
  return Status::Error(EBUSY, "the file is truncated all the time");
}

Result<bool> FileService::TailIsZero(const Request& request, Inode& inode, uint64_t size) {
  const uint64_t page = size >> kPageBits;
  if (size % kPageSize == 0) {
    return true;
  }
  ASSIGN_OR_RETURN(const auto segments, SegmentsOf(request, inode, page, page + 1));
  std::array<std::byte, kPageSize> bytes{};
  const uint64_t in_page = size % kPageSize;
  const std::span<std::byte> tail = std::span(bytes).subspan(in_page);
  if (!segments.empty() && !segments[0].is_hole()) {
    RETURN_IF_ERROR(region().Read({(segments[0].region_page << kPageBits) + in_page}, tail));
  }
  return std::all_of(tail.begin(), tail.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

// Durable when it returns: the size that covers these bytes may be so before anybody syncs the file.
Status FileService::ZeroTail(const Request& request, Inode& inode, uint64_t size) {
  if (size % kPageSize == 0) {
    return Status::Ok();
  }
  RETURN_IF_ERROR(ZeroBytes(request, inode, size, RoundUpToPage(size)));
  ASSIGN_OR_RETURN(const auto segments, SegmentsOf(request, inode, size >> kPageBits, PagesFor(size)));
  if (segments.empty() || segments[0].is_hole()) {
    return Status::Ok();
  }
  const tlib::server::PageRange page{PageIndex{segments[0].region_page}, 1};
  Status flushed = region().Flush({&page, 1});
  if (!flushed.ok()) {
    reclaimer_.Unsettle();
  }
  return flushed;
}

Status FileService::ZeroBytes(const Request& request, Inode& inode, uint64_t begin, uint64_t end) {
  if (begin >= end) {
    return Status::Ok();
  }
  const uint64_t first_page = begin >> kPageBits;
  const uint64_t end_page = PagesFor(end);
  ASSIGN_OR_RETURN(const auto segments, SegmentsOf(request, inode, first_page, end_page));
  static constexpr std::array<std::byte, kPageSize> kZeros{};
  std::vector<tlib::server::PageRange> whole;
  for (const Segment& s : segments) {
    if (s.is_hole()) {
      continue;
    }
    const uint64_t from = std::max(begin, s.file_page << kPageBits);
    const uint64_t to = std::min(end, s.end() << kPageBits);
    const uint64_t region_begin = (s.region_page << kPageBits) + from - (s.file_page << kPageBits);
    const uint64_t region_end = region_begin + (to - from);
    const uint64_t whole_begin = std::min(RoundUpToPage(region_begin), region_end);
    const uint64_t whole_end = std::max(RoundDownToPage(region_end), whole_begin);
    if (whole_begin < whole_end) {
      whole.push_back({RegionOffset{whole_begin}.page(), (whole_end - whole_begin) >> kPageBits});
    }
    if (region_begin < whole_begin) {
      RETURN_IF_ERROR(region().Write({region_begin}, std::span(kZeros).first(whole_begin - region_begin)));
    }
    if (whole_end < region_end) {
      RETURN_IF_ERROR(region().Write({whole_end}, std::span(kZeros).first(region_end - whole_end)));
    }
  }
  if (!whole.empty()) {
    RETURN_IF_ERROR(region().Zero(whole));
  }
  MutexLock lock(inode.mutex);
  inode.unsynced.Add(first_page, std::min(end_page, PagesFor(inode.size)));
  return Status::Ok();
}

}  // namespace termfs::fs::server
