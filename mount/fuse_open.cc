// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>

#include <optional>

#include "mount/convert.h"
#include "mount/errno.h"
#include "mount/front_end.h"
#include "mount/fuse_operations.h"

namespace termfs::mount {

void OnOpen(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info) {
  FrontEnd& front = FrontEnd::Of(request);
  if ((info->flags & O_TRUNC) != 0 && FuseServer::request().clears_privileges) {
    if (Status cleared = front.ClearPrivileges(ino); !cleared.ok()) {
      return Reply(request, cleared);
    }
  }
  std::optional<KernelCacheNotifier::OwnCut> cut;
  if ((info->flags & O_TRUNC) != 0) {
    cut.emplace(front.cache(), ino);
  }
  const Result<fs::client::OpenFile*> file = front.file_system().Open(FrontEnd::lane(), ino, info->flags);
  if (!file.ok()) {
    return Reply(request, file.status());
  }
  front.RememberOpen(*file);
  if (const Status kept = (info->flags & O_TRUNC) != 0 ? front.KeepFile(*file) : Status::Ok(); !kept.ok()) {
    front.Release(FrontEnd::lane(), *file);
    return Reply(request, kept);
  }
  info->fh = reinterpret_cast<uint64_t>(*file);
  switch (front.file_system().pages(*file)) {  // see "Pages under a lease"
    case fs::client::PageUse::kNone:
      MakeDirect(info);
      break;
    case fs::client::PageUse::kKept:
      info->keep_cache = 1;
      break;
    case fs::client::PageUse::kFresh:
      break;
  }
  if (cut.has_value()) {
    FinishCut(*cut);
  }
  if (fuse_reply_open(request, info) != 0) {
    front.Release(FrontEnd::lane(), *file);  // the caller was interrupted: no release will come
  }
}

void OnFlush(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  Reply(request, FrontEnd::Of(request).file_system().Flush(FrontEnd::lane(), FileOf(info), info->lock_owner));
}

void OnSync(fuse_req_t request, fuse_ino_t, int data_only, fuse_file_info* info) {
  Reply(request, FrontEnd::Of(request).file_system().Sync(FrontEnd::lane(), FileOf(info), data_only != 0));
}

void OnRelease(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  FrontEnd::Of(request).Release(FrontEnd::lane(), FileOf(info));
  Reply(request, Status::Ok());
}

}  // namespace termfs::mount
