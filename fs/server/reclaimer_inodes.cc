// SPDX-License-Identifier: Apache-2.0
//
// What the server keeps of an inode in memory for a while, brought into the store: its times, and at the last close
// what was allocated ahead of its size.
#include <utility>

#include "fs/server/reclaimer.h"

namespace termfs::fs::server {

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
