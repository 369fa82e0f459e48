// SPDX-License-Identifier: Apache-2.0
#include <linux/fs.h>

#include "mount/convert.h"
#include "mount/errno.h"
#include "mount/front_end.h"
#include "mount/fuse_operations.h"

namespace termfs::mount {

void OnUnlink(fuse_req_t request, fuse_ino_t parent, const char* name) {
  FrontEnd& front = FrontEnd::Of(request);
  const KernelCacheNotifier::Change change(front.cache(), parent);
  Reply(request, front.WithName(parent, front.file_system().Unlink(FrontEnd::lane(), parent, name)));
}

void OnRemoveDirectory(fuse_req_t request, fuse_ino_t parent, const char* name) {
  FrontEnd& front = FrontEnd::Of(request);
  const KernelCacheNotifier::Change change(front.cache(), parent);
  Reply(request, front.WithName(parent, front.file_system().RemoveDirectory(FrontEnd::lane(), parent, name)));
}

void OnRename(fuse_req_t request, fuse_ino_t parent, const char* name, fuse_ino_t new_parent, const char* new_name,
              unsigned flags) {
  FrontEnd& front = FrontEnd::Of(request);
  const KernelCacheNotifier::Change change(front.cache(), parent);
  const KernelCacheNotifier::Change other_change(front.cache(), new_parent);
  front.cache().Moves({parent, name}, {new_parent, new_name}, (flags & RENAME_EXCHANGE) != 0);
  fs::client::FileSystem& files = front.file_system();
  Status renamed = (flags & RENAME_WHITEOUT) != 0
                       ? files.RenameLeavingWhiteout(FrontEnd::lane(), CallerOf(request), parent, name, new_parent,
                                                     new_name, flags & ~unsigned{RENAME_WHITEOUT})
                       : files.Rename(FrontEnd::lane(), parent, name, new_parent, new_name, flags);
  Reply(request, front.WithName(new_parent, front.InDirectory(parent, std::move(renamed))));
}

}  // namespace termfs::mount
