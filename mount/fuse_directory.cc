// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>

#include <memory>
#include <vector>

#include "mount/convert.h"
#include "mount/errno.h"
#include "mount/front_end.h"
#include "mount/fuse_operations.h"

namespace termfs::mount {
namespace {

// The kernel takes it as looked up; of others it takes the name only.
bool IsLookedUp(const fs::DirectoryEntry& entry) {
  return entry.name != "." && entry.name != ".." && entry.attributes.ino == entry.ino && !IsSpecial(entry.type);
}

// Appends the entry in the kernel's layout; returns its size, more than `room` when it did not fit.
size_t AddEntry(fuse_req_t request, char* place, size_t room, const fs::DirectoryEntry& entry, bool plus) {
  const auto cursor = static_cast<off_t>(entry.cursor);
  if (!plus) {
    struct stat st {};
    st.st_ino = entry.ino;
    st.st_mode = entry.type;
    return fuse_add_direntry(request, place, room, entry.name.c_str(), &st, cursor);
  }
  fuse_entry_param parameters = ToEntry(entry.attributes, FrontEnd::Of(request).Keep(&entry.attributes));
  if (!IsLookedUp(entry)) {
    parameters = {};  // node id 0: the kernel takes the name and looks it up itself when it is asked for
    parameters.attr.st_ino = entry.ino;
    parameters.attr.st_mode = entry.type;
  }
  return fuse_add_direntry_plus(request, place, room, entry.name.c_str(), &parameters, cursor);
}

void ReadDirectory(fuse_req_t request, fuse_ino_t ino, size_t size, off_t cursor, bool plus) {
  size = std::min(size, kMaxIo);
  FrontEnd& front = FrontEnd::Of(request);
  const auto entries =
      front.file_system().ReadDirectory(FrontEnd::lane(), ino, static_cast<uint64_t>(cursor), size, plus);
  if (front.Removed(ino, entries.status())) {
    fuse_reply_buf(request, nullptr, 0);
    return;
  }
  if (!entries.ok()) {
    return Reply(request, entries.status());
  }
  const auto buffer = std::make_unique_for_overwrite<char[]>(size);
  size_t used = 0;
  std::vector<uint64_t> directories;  // that the kernel gets to know
  for (const fs::DirectoryEntry& entry : *entries) {
    const size_t took = AddEntry(request, buffer.get() + used, size - used, entry, plus);
    if (took > size - used) {
      break;  // the kernel asks again, from the last cursor it got
    }
    used += took;
    if (plus && S_ISDIR(entry.type) && IsLookedUp(entry)) {
      front.directories().LookedUp(entry.attributes);
      directories.push_back(entry.ino);
    }
  }
  if (fuse_reply_buf(request, buffer.get(), used) != 0) {  // the caller was interrupted
    for (const uint64_t directory : directories) {
      front.directories().Forget(directory, 1);
    }
  }
}

}  // namespace

// A cursor says where a listing is; what is open is the inode, which may be removed meanwhile. Without FOPEN_CACHE_DIR
// the kernel asks for every listing.
void OnOpenDirectory(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info) {
  FrontEnd& front = FrontEnd::Of(request);
  const Result<fs::client::OpenFile*> directory = front.file_system().Open(FrontEnd::lane(), ino, O_PATH);
  if (front.Removed(ino, directory.status())) {
    info->fh = 0;
    fuse_reply_open(request, info);
    return;
  }
  if (!directory.ok()) {
    return Reply(request, directory.status());
  }
  front.RememberOpen(*directory);
  info->fh = reinterpret_cast<uint64_t>(*directory);
  if (fuse_reply_open(request, info) != 0) {
    front.Release(FrontEnd::lane(), *directory);  // the caller was interrupted: no release will come
  }
}

void OnReleaseDirectory(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  FrontEnd::Of(request).Release(FrontEnd::lane(), FileOf(info));
  Reply(request, Status::Ok());
}

void OnReadDirectory(fuse_req_t request, fuse_ino_t ino, size_t size, off_t cursor, fuse_file_info*) {
  ReadDirectory(request, ino, size, cursor, false);
}

void OnReadDirectoryPlus(fuse_req_t request, fuse_ino_t ino, size_t size, off_t cursor, fuse_file_info*) {
  ReadDirectory(request, ino, size, cursor, true);
}

void OnSyncDirectory(fuse_req_t request, fuse_ino_t ino, int, fuse_file_info*) {
  Reply(request, FrontEnd::Of(request).file_system().SyncDirectory(FrontEnd::lane(), ino));
}

}  // namespace termfs::mount
