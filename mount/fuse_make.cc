// SPDX-License-Identifier: Apache-2.0
#include "mount/convert.h"
#include "mount/errno.h"
#include "mount/front_end.h"
#include "mount/fuse_operations.h"

namespace termfs::mount {

void OnCreate(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* info) {
  FrontEnd& front = FrontEnd::Of(request);
  const KernelCacheNotifier::Change change(front.cache(), parent);
  const auto made = front.file_system().Create(FrontEnd::lane(), CallerOf(request), parent, name, mode, info->flags);
  if (!made.ok()) {
    return Reply(request, front.InDirectory(parent, made.status()));
  }
  const auto& [attributes, file] = *made;
  front.RememberOpen(file);
  if (const Status kept = front.KeepName(parent); !kept.ok()) {
    front.Release(FrontEnd::lane(), file);
    return Reply(request, kept);
  }
  info->fh = reinterpret_cast<uint64_t>(file);
  MakeDirect(info);
  const fuse_entry_param entry = ToEntry(attributes, front.Keep(&attributes));
  if (fuse_reply_create(request, &entry, info) != 0) {
    front.Release(FrontEnd::lane(), file);  // the caller was interrupted: no release will come
  }
}

void OnMakeUnnamed(fuse_req_t request, fuse_ino_t parent, mode_t mode, fuse_file_info* info) {
  FrontEnd& front = FrontEnd::Of(request);
  const auto made = front.file_system().CreateUnnamed(FrontEnd::lane(), CallerOf(request), parent, mode, info->flags);
  if (!made.ok()) {
    return Reply(request, front.InDirectory(parent, made.status()));
  }
  const auto& [attributes, file] = *made;
  front.RememberOpen(file);
  info->fh = reinterpret_cast<uint64_t>(file);
  MakeDirect(info);
  const fuse_entry_param entry = ToEntry(attributes, {});
  if (fuse_reply_create(request, &entry, info) != 0) {
    front.Release(FrontEnd::lane(), file);  // the caller was interrupted: no release will come
  }
}

void OnMakeNode(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, dev_t device) {
  FrontEnd& front = FrontEnd::Of(request);
  const KernelCacheNotifier::Change change(front.cache(), parent);
  ReplyEntry(request, front.WithName(parent, front.file_system().MakeNode(FrontEnd::lane(), CallerOf(request), parent,
                                                                          name, mode, static_cast<uint32_t>(device))));
}

void OnMakeDirectory(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode) {
  FrontEnd& front = FrontEnd::Of(request);
  const KernelCacheNotifier::Change change(front.cache(), parent);
  ReplyEntry(request, front.WithName(parent, front.file_system().MakeDirectory(FrontEnd::lane(), CallerOf(request),
                                                                               parent, name, mode)));
}

void OnSymlink(fuse_req_t request, const char* target, fuse_ino_t parent, const char* name) {
  FrontEnd& front = FrontEnd::Of(request);
  const KernelCacheNotifier::Change change(front.cache(), parent);
  ReplyEntry(request, front.WithName(parent, front.file_system().Symlink(FrontEnd::lane(), CallerOf(request), parent,
                                                                         name, target)));
}

void OnLink(fuse_req_t request, fuse_ino_t ino, fuse_ino_t new_parent, const char* new_name) {
  FrontEnd& front = FrontEnd::Of(request);
  const KernelCacheNotifier::Change change(front.cache(), new_parent);
  ReplyEntry(request,
             front.WithName(new_parent, front.file_system().Link(FrontEnd::lane(), ino, new_parent, new_name)));
}

}  // namespace termfs::mount
