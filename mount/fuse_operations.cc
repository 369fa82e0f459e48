// SPDX-License-Identifier: Apache-2.0
#include "mount/fuse_operations.h"

#include "mount/front_end.h"

namespace termfs::mount {

// Not here, and why: read (the threads answer it themselves: FrontEndThread); access (the kernel checks permissions:
// default_permissions); poll, ioctl and bmap (nothing to say).
fuse_lowlevel_ops FrontEnd::Operations() {
  fuse_lowlevel_ops table{};
  table.init = &OnInit;
  table.lookup = &OnLookup;
  table.forget = &OnForget;
  table.forget_multi = &OnForgetMany;
  table.readlink = &OnReadLink;
  table.getattr = &OnGetAttributes;
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 18)
  table.statx = &OnStatx;
#endif
  table.setattr = &OnSetAttributes;
  table.statfs = &OnStatFs;
  table.create = &OnCreate;
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
  table.tmpfile = &OnMakeUnnamed;
#endif
  table.mknod = &OnMakeNode;
  table.mkdir = &OnMakeDirectory;
  table.symlink = &OnSymlink;
  table.link = &OnLink;
  table.unlink = &OnUnlink;
  table.rmdir = &OnRemoveDirectory;
  table.rename = &OnRename;
  table.open = &OnOpen;
  table.flush = &OnFlush;
  table.fsync = &OnSync;
  table.release = &OnRelease;
  table.write = &OnWrite;
  table.lseek = &OnSeek;
  table.getlk = &OnGetLock;
  table.setlk = &OnSetLock;
  table.flock = &OnFlock;
  table.fallocate = &OnAllocate;
  table.copy_file_range = &OnCopy;
  table.opendir = &OnOpenDirectory;
  table.readdir = &OnReadDirectory;
  table.readdirplus = &OnReadDirectoryPlus;
  table.releasedir = &OnReleaseDirectory;
  table.fsyncdir = &OnSyncDirectory;
  table.setxattr = &OnSetXattr;
  table.getxattr = &OnGetXattr;
  table.listxattr = &OnListXattr;
  table.removexattr = &OnRemoveXattr;
  return table;
}

}  // namespace termfs::mount
