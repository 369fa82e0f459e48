// SPDX-License-Identifier: Apache-2.0
//
// What the server keeps of an inode in memory for a while, brought into the store: its times, and at the last close
// what was allocated ahead of its size.
#include <utility>

#include "fs/server/reclaimer.h"

namespace termfs::fs::server {

namespace {

constexpr std::chrono::seconds kCutRests{5};
constexpr size_t kCutsPerTick = 256;

}  // namespace

Status Reclaimer::WriteAccessTime(metadata::Namespace& names, Inode& inode) {
  Nanoseconds atime;
  {
    MutexLock lock(inode.mutex);
    if (!inode.atime_dirty) {
      return Status::Ok();
    }
    atime = inode.atime;
  }
  Status written = names.SetAccessTime(inode.ino, atime);
  if (!written.ok() && written.code() != ESTALE) {
    return written;
  }
  MutexLock lock(inode.mutex);
  inode.atime_dirty = inode.atime != atime;
  return Status::Ok();
}

Status Reclaimer::WriteTimes(metadata::Namespace& names, Inode& inode) {
  RETURN_IF_ERROR(WriteAccessTime(names, inode));
  Nanoseconds mtime;
  Nanoseconds ctime;
  uint64_t sequence;
  {
    MutexLock lock(inode.mutex);
    if (!inode.times_dirty) {
      return Status::Ok();
    }
    mtime = inode.mtime;
    ctime = inode.ctime;
    sequence = inode.times_sequence;
  }
  // Size 0 with kIfLarger: the times only; sizes are written by the operations that change them.
  const auto written = names.SetSizeAndTimes(inode.ino, 0, metadata::SizeRule::kIfLarger, mtime, ctime);
  if (!written.ok() && written.status().code() != ESTALE) {
    return written.status();
  }
  MutexLock lock(inode.mutex);
  inode.times_dirty = inode.times_sequence != sequence;
  return Status::Ok();
}

void Reclaimer::NoteCut(uint64_t ino) {
  MutexLock lock(mutex_);
  if (in_cuts_.insert(ino).second) {
    cuts_.push_back({ino, std::chrono::steady_clock::now() + kCutRests});
  }
}

void Reclaimer::ListCuts() {
  for (uint64_t after = 0;;) {
    const auto cuts = names_.ListCuts(after, kCutsPerTick);
    if (!cuts.ok() || cuts->empty()) {
      return;
    }
    for (const uint64_t ino : *cuts) {
      NoteCut(ino);
    }
    after = cuts->back();
  }
}

// Those that were cut a while ago: what was written since then does not wait for an fsync that may never come.
void Reclaimer::SettleCuts() {
  const auto now = std::chrono::steady_clock::now();
  for (size_t i = 0; i < kCutsPerTick; ++i) {
    uint64_t ino;
    {
      MutexLock lock(mutex_);
      if (cuts_.empty() || cuts_.front().due > now) {
        return;
      }
      ino = cuts_.front().ino;
      cuts_.pop_front();
      in_cuts_.erase(ino);
    }
    const Result<bool> settled = SettleCut(ino);
    if (!settled.ok()) {
      failures_.Report("flushing the end of inode", ino, settled.status());
    }
    if (!settled.ok() || !*settled) {
      NoteCut(ino);
    }
  }
}

Result<bool> Reclaimer::SettleCut(uint64_t ino) {
  const auto attributes = names_.GetAttr(ino);
  if (!attributes.ok()) {
    return attributes.status().code() == ESTALE ? Result<bool>(true) : attributes.status();
  }
  const metadata::TailCut& cut = attributes->cut;
  if (!cut) {
    return true;
  }
  const InodeRef inode = inodes_.Find(ino);
  if (inode) {
    MutexLock lock(inode->mutex);
    if (inode->loaded && inode->only_cut) {
      return false;  // growth relies on the cut
    }
  }
  if (attributes->size <= cut.from) {
    return false;  // nothing is shown of what was cut off; when it grows there is something to flush
  }
  ASSIGN_OR_RETURN(const auto extents, names_.GetExtents(ino, cut.page(), 1, 1));
  if (!extents.empty()) {
    const tlib::server::PageRange page{extents.front().region_page, 1};
    RETURN_IF_ERROR(server_->RunInCoroutine([&] { return server_->region().Flush({&page, 1}); }));
    ASSIGN_OR_RETURN(const auto now, names_.GetExtents(ino, cut.page(), 1, 1));
    if (now.empty() || now.front().region_page != extents.front().region_page) {
      return false;
    }
  }
  RETURN_IF_ERROR(names_.ForgetCut(ino, cut));
  NoteChange();
  if (inode) {
    MutexLock lock(inode->mutex);
    if (inode->cut == cut) {
      inode->cut = {};
    }
  }
  return true;
}

Result<bool> Reclaimer::CloseLast(metadata::Namespace& names, Inode& inode) {
  uint64_t begin = 0;
  uint64_t end = 0;
  bool noted = false;
  {
    MutexLock lock(inode.mutex);
    if (inode.unlinked) {
      inode.times_dirty = inode.ahead_noted = false;  // it will not be asked for again
    }
    if (!inode.opens.empty() || !inode.loaded || inode.unlinked) {
      return false;
    }
    begin = PagesFor(inode.size);
    end = std::exchange(inode.ahead_end, 0);
    noted = std::exchange(inode.ahead_noted, false);
    if (noted) {
      inode.ForgetExtents();  // the store frees all beyond the size: what a write that failed had got, too
    }
  }
  if (noted) {
    Result<bool> more = true;
    while (more.ok() && *more) {
      more = names.TrimAhead(inode.ino);
    }
    MutexLock lock(inode.mutex);
    inode.ForgetExtents();  // an open meanwhile may have looked them up
    if (!more.ok()) {
      inode.ahead_noted = true;
      inode.ahead_end = end;
      return more.status();
    }
  }
  RETURN_IF_ERROR(WriteTimes(names, inode));
  return begin < end;
}

}  // namespace termfs::fs::server
