// SPDX-License-Identifier: Apache-2.0
//
// Where a file's pages lie, as far as the server has looked it up, and space for what has none.
#include "fs/server/service.h"

namespace termfs::fs::server {

namespace {

constexpr size_t kMostPerLook = 1024;                   // extents
constexpr uint64_t kAheadFrom = 64 << 10;               // bytes: files below it get exactly what they need
constexpr uint64_t kMaxAhead = (8 << 20) >> kPageBits;  // pages
constexpr uint64_t kFreeShareForAhead = 64;             // at most 1/64 of the free space

}  // namespace

Status FileService::LoadExtents(const Request& request, Inode& inode, uint64_t page, uint64_t end) {
  constexpr int kAttempts = 100000;  // each brings so many extents, or was lost to a truncation
  const size_t per_look = std::min(kMostPerLook, options_.max_segments / 4);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    uint64_t frees;
    uint64_t forgotten;
    {
      MutexLock lock(inode.mutex);
      page = inode.extents.FirstUnknown(page, end);
      if (page >= end) {
        return Status::Ok();
      }
      if (inode.extents.segments().size() > options_.max_segments && !inode.frozen) {
        inode.extents.Clear();
        inode.forgotten++;
      }
      frees = inode.frees.load(std::memory_order_relaxed);
      forgotten = inode.forgotten;
    }
    ASSIGN_OR_RETURN(const auto found, request.Blocking([&] {
      return names_.GetExtents(inode.ino, page, kMaxFilePages - page, per_look);
    }));
    MutexLock lock(inode.mutex);
    // If extents were forgotten meanwhile, so may have been one that is newer than what was found.
    if (inode.frees.load(std::memory_order_relaxed) != frees || inode.forgotten != forgotten) {
      continue;
    }
    uint64_t at = page;
    for (const metadata::Extent& e : found) {
      if (e.server != names_.superblock().region_server) {
        return Status::Error(EIO, "an extent on a server that this volume does not have");
      }
      if (e.file_page > at) {
        inode.extents.FillUnknown({at, e.file_page - at, kHole});
      }
      inode.extents.FillUnknown({e.file_page, e.pages, e.region_page.value});
      at = e.file_page + e.pages;
    }
    if (found.size() < per_look && at < kMaxFilePages) {
      inode.extents.FillUnknown({at, kMaxFilePages - at, kHole});
      at = kMaxFilePages;
    }
    if (at >= end) {
      return Status::Ok();
    }
    page = at;
  }
  return Status::Error(EBUSY, "the file is truncated all the time");
}

Result<std::vector<Segment>> FileService::SegmentsOf(const Request& request, Inode& inode, uint64_t page,
                                                     uint64_t end) {
  constexpr int kAttempts = 1000;                    // each lost to others, whose look-ups have this one's forgotten
  const uint64_t piece = options_.max_segments / 2;  // pages, which have no more segments
  std::vector<Segment> all;
  for (int attempt = 0; attempt < kAttempts;) {
    {
      MutexLock lock(inode.mutex);
      const uint64_t known = inode.extents.FirstUnknown(page, end);
      const std::vector<Segment> segments = inode.extents.Cut(page, known);
      all.insert(all.end(), segments.begin(), segments.end());
      attempt = known == page ? attempt + 1 : 0;
      page = known;
    }
    if (page >= end) {
      return all;
    }
    RETURN_IF_ERROR(LoadExtents(request, inode, page, std::min(end, page + piece)));
  }
  return Status::Error(EBUSY, "what is known of the file's extents is forgotten all the time");
}

uint64_t FileService::PagesAhead(Inode& inode, uint64_t offset, uint64_t end) const {
  const uint64_t end_page = PagesFor(end);
  {
    MutexLock lock(inode.mutex);
    if (end <= inode.size || offset > inode.size || end < kAheadFrom) {
      return 0;
    }
    // Somebody's own preallocation behind the end is not ours to trim.
    const auto behind = inode.extents.segments();
    if (behind.empty() || !behind.back().is_hole() || behind.back().file_page > end_page ||
        behind.back().end() < std::min(kMaxFilePages, end_page + kMaxAhead)) {
      return 0;
    }
  }
  const uint64_t share = names_.StatFs().free_pages / kFreeShareForAhead;
  return std::min({kMaxAhead, share, end >> kPageBits, kMaxFilePages - end_page});
}

bool FileService::MayGetRoom(const Status& refused) {
  if (refused.code() != ENOSPC && refused.code() != EDQUOT) {
    return false;
  }
  if (refused.code() == ENOSPC || reclaimer_.HasOrphans()) {  // else those there were may have gone since the refusal
    reclaimer_.WaitForSpace(std::chrono::steady_clock::now() + options_.space_timeout);
  }
  return true;
}

Status FileService::AllocatePages(const Request& request, Inode& inode, uint64_t page, uint64_t end, uint64_t ahead) {
  const SpaceClaim claim(claimed_pages_, end - page + ahead);
  RETURN_IF_ERROR(KeepPromisedSpace(request, inode));
  uint64_t at = page;
  bool waited = false;
  while (at < end) {
    const uint64_t needed = std::min(end - at, metadata::kMaxAllocation);
    const uint64_t extra = needed == end - at ? std::min(ahead, metadata::kMaxAllocation - needed) : 0;
    const auto given = request.Blocking(
        [&] { return names_.AllocateExtents(inode.ino, at, needed + extra, std::nullopt, Now(), extra); });
    if ((given.status().code() == ENOSPC || given.status().code() == EDQUOT) && extra > 0) {
      ahead = 0;
      continue;
    }
    if (!waited && MayGetRoom(given.status())) {
      waited = true;
      continue;
    }
    RETURN_IF_ERROR(given.status());
    reclaimer_.NoteChange();
    MutexLock lock(inode.mutex);
    for (const metadata::Extent& e : *given) {
      if (e.server != names_.superblock().region_server) {
        return Status::Error(EIO, "an extent on a server that this volume does not have");
      }
      inode.extents.Set({e.file_page, e.pages, e.region_page.value});
    }
    if (extra > 0) {
      inode.ahead_end = at + needed + extra;
      inode.ahead_noted = true;
    }
    at += needed;
  }
  return Status::Ok();
}

}  // namespace termfs::fs::server
