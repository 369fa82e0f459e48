// SPDX-License-Identifier: Apache-2.0
//
// The FUSE callbacks, by the file that has them. Every one answers its request exactly once.
#pragma once

#include <fuse_lowlevel.h>

#include "base/result.h"
#include "mount/kernel_cache.h"

namespace termfs::mount {

// fuse_init.cc
void OnInit(void* userdata, fuse_conn_info* connection);

// fuse_lookup.cc
void OnLookup(fuse_req_t request, fuse_ino_t parent, const char* name);
void OnForget(fuse_req_t request, fuse_ino_t ino, uint64_t count);
void OnForgetMany(fuse_req_t request, size_t count, fuse_forget_data* forgets);
void OnReadLink(fuse_req_t request, fuse_ino_t ino);

// fuse_attributes.cc
void OnGetAttributes(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info);
void OnStatx(fuse_req_t request, fuse_ino_t ino, int flags, int mask, fuse_file_info* info);
void OnSetAttributes(fuse_req_t request, fuse_ino_t ino, struct stat* attributes, int which, fuse_file_info* info);
void OnStatFs(fuse_req_t request, fuse_ino_t ino);
// No callback: whether the caller may not keep the file's set-group-id bit, as the kernel has it: it is neither
// privileged nor in the file's group. A file without the bit has nothing to lose.
Result<bool> LosesGroupId(fuse_req_t request, fuse_ino_t ino);
// No callback: the kernel is about to be answered that it has cut the inode off.
void FinishCut(KernelCacheNotifier::OwnCut& cut);

// fuse_make.cc
void OnCreate(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* info);
void OnMakeUnnamed(fuse_req_t request, fuse_ino_t parent, mode_t mode, fuse_file_info* info);
void OnMakeNode(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, dev_t device);
void OnMakeDirectory(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode);
void OnSymlink(fuse_req_t request, const char* target, fuse_ino_t parent, const char* name);
void OnLink(fuse_req_t request, fuse_ino_t ino, fuse_ino_t new_parent, const char* new_name);

// fuse_remove.cc
void OnUnlink(fuse_req_t request, fuse_ino_t parent, const char* name);
void OnRemoveDirectory(fuse_req_t request, fuse_ino_t parent, const char* name);
void OnRename(fuse_req_t request, fuse_ino_t parent, const char* name, fuse_ino_t new_parent, const char* new_name,
              unsigned flags);

// fuse_open.cc
void OnOpen(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info);
void OnFlush(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info);
void OnSync(fuse_req_t request, fuse_ino_t ino, int data_only, fuse_file_info* info);
void OnRelease(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info);

// fuse_data.cc (which also has FrontEndThread::Read)
void OnWrite(fuse_req_t request, fuse_ino_t ino, const char* data, size_t size, off_t offset, fuse_file_info* info);
void OnSeek(fuse_req_t request, fuse_ino_t ino, off_t offset, int whence, fuse_file_info* info);
void OnAllocate(fuse_req_t request, fuse_ino_t ino, int mode, off_t offset, off_t length, fuse_file_info* info);
void OnCopy(fuse_req_t request, fuse_ino_t ino, off_t offset, fuse_file_info* info, fuse_ino_t target,
            off_t target_offset, fuse_file_info* target_info, size_t length, int flags);

// fuse_locks.cc
void OnGetLock(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info, struct flock* wanted);
void OnSetLock(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info, struct flock* wanted, int sleep);
void OnFlock(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info, int operation);

// fuse_directory.cc
void OnOpenDirectory(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info);
void OnReadDirectory(fuse_req_t request, fuse_ino_t ino, size_t size, off_t cursor, fuse_file_info* info);
void OnReadDirectoryPlus(fuse_req_t request, fuse_ino_t ino, size_t size, off_t cursor, fuse_file_info* info);
void OnReleaseDirectory(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info);
void OnSyncDirectory(fuse_req_t request, fuse_ino_t ino, int data_only, fuse_file_info* info);

// fuse_xattr.cc
void OnSetXattr(fuse_req_t request, fuse_ino_t ino, const char* name, const char* value, size_t size, int flags);
void OnGetXattr(fuse_req_t request, fuse_ino_t ino, const char* name, size_t size);
void OnListXattr(fuse_req_t request, fuse_ino_t ino, size_t size);
void OnRemoveXattr(fuse_req_t request, fuse_ino_t ino, const char* name);

}  // namespace termfs::mount
