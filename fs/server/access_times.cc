// SPDX-License-Identifier: Apache-2.0
//
// Access times, moved as file systems of the kernel do by default (relatime): by the first access after a change, and
// once a day. Clients read past the server; so an open whose first read would move the time is granted no map, and
// that read comes here. A file's goes to the store within a second (reclaimer.h), for the many that are read once.
#include <utility>

#include "fs/server/service.h"

namespace termfs::fs::server {

void FileService::NoteAccess(Inode& inode, uint64_t knows) {
  const Nanoseconds now = Now();
  {
    MutexLock lock(inode.mutex);
    if (!AccessTimeIsDue({.access = inode.atime, .modification = inode.mtime, .change = inode.ctime}, now)) {
      return;
    }
    inode.atime = now;
    if (!std::exchange(inode.atime_dirty, true)) {
      reclaimer_.NoteDirty(inode.ino);
    }
  }
  coherence_.Recall(knows, {inode.ino}, {});
}

void FileService::NoteAccess(const Request& request, const metadata::Attributes& attributes) {
  const Nanoseconds now = Now();
  // Nobody's access fails for it, whatever is full.
  if (AccessTimeIsDue({.access = attributes.atime, .modification = attributes.mtime, .change = attributes.ctime},
                      now) &&
      request.Blocking([&] { return names_.SetAccessTime(attributes.ino, now); }).ok()) {
    reclaimer_.NoteChange();
    coherence_.Recall(request.session.id, {attributes.ino}, {});
  }
}

}  // namespace termfs::fs::server
