// SPDX-License-Identifier: Apache-2.0
#include "fs/proto/codec.h"
#include "fs/server/service.h"

namespace termfs::fs::server {

Result<Bytes> FileService::Sync(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Sync>(request.call.body()));
  if (body.ino != 0) {
    ASSIGN_OR_RETURN(const InodeRef inode, FindOpen(request, body.ino));
    RETURN_IF_ERROR(SyncInode(request, *inode, body.data_only));
  }
  RETURN_IF_ERROR(request.Blocking([&] { return names_.Sync(); }));
  return Bytes{};
}

void FileService::LoadInode(Inode& inode, const metadata::Attributes& attributes) {
  inode.Load(attributes);
  inode.failed_flushes = region().failed_flushes();
}

Status FileService::SyncInode(const Request& request, Inode& inode, bool data_only) {
  // One at a time: who comes second relies on what the first has taken over to flush.
  constexpr std::chrono::seconds kPatience{120};
  RETURN_IF_ERROR(inode.sync_gate.Enter(GateMode::kExclusive, std::chrono::steady_clock::now() + kPatience,
                                        &request.session.expelled));
  struct Leaver {
    Gate& gate;
    ~Leaver() { gate.Leave(GateMode::kExclusive); }
  } leaver{inode.sync_gate};

  if (!data_only) {  // the size is in the store already
    ASSIGN_OR_RETURN(const GateHold hold, GateHold::Enter(inode, GateMode::kShared, request.session));
    RETURN_IF_ERROR(request.Blocking([&] { return Reclaimer::WriteTimes(names_, inode); }));
  }
  Hull hull;
  uint64_t end;
  {
    MutexLock lock(inode.mutex);
    hull = std::exchange(inode.unsynced, Hull{});
    end = std::min(hull.end, PagesFor(inode.size));
  }
  Status flushed = hull.begin < end ? FlushPages(request, inode, hull.begin, end) : Status::Ok();
  if (flushed.ok()) {
    flushed = SettleCut(request, inode);
  }
  const uint64_t failed = region().failed_flushes();
  MutexLock lock(inode.mutex);
  if (!flushed.ok()) {
    inode.unsynced.Add(hull.begin, hull.end);
  }
  // One that nobody waited for, as the cleaner's: each file is told once, as the kernel does.
  if (std::exchange(inode.failed_flushes, failed) != failed && flushed.ok() && hull.begin < end) {
    return Status::Error(EIO,
                         "the SSD has failed a flush since the file was synced last; what it had taken may be lost");
  }
  return flushed;
}

// Pages that are moved meanwhile are flushed where they are now: there the flush of the move may not be the last word.
Status FileService::FlushPages(const Request& request, Inode& inode, uint64_t page, uint64_t end) {
  constexpr int kAttempts = 1000;  // each lost to a truncation, a punched hole or a move
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const uint64_t frees = inode.frees.load(std::memory_order_acquire);
    ASSIGN_OR_RETURN(const auto segments, SegmentsOf(request, inode, page, end));
    std::vector<tlib::server::PageRange> ranges;
    for (const Segment& s : segments) {
      if (!s.is_hole()) {
        ranges.push_back({PageIndex{s.region_page}, s.pages});
      }
    }
    Status flushed = ranges.empty() ? Status::Ok() : region().Flush(ranges);
    if (inode.frees.load(std::memory_order_acquire) == frees) {
      return flushed;
    }
  }
  return Status::Error(EBUSY, "the file is truncated all the time");
}

}  // namespace termfs::fs::server
