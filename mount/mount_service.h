// SPDX-License-Identifier: Apache-2.0
//
// A mount's life: from an empty directory to a served file system and back, until somebody unmounts it or a signal says
// so. In between the process does nothing but answer the kernel.
//
// Errors: what is wrong with the mount point (ENOENT, ENOTDIR, ENOTEMPTY, EBUSY), the server, or the kernel's FUSE.
#pragma once

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "fs/client/file_system.h"
#include "mount/daemon.h"
#include "mount/guard.h"
#include "mount/kernel_cache.h"
#include "mount/mount_config.h"

namespace termfs::mount {

struct MountRequest {
  fs::client::ServerAddress address;  // shown as the mount's source
  std::string mountpoint;             // absolute
  MountConfig config;
};

// What is wrong with mounting on `path`, if anything.
Status CheckMountPoint(const std::string& path);

fs::client::MountOptions ToClientOptions(const MountRequest& request);

// Mounts `file_system`, tells `readiness` once a request has gone all the way through, and answers until it is
// unmounted or `signals` (BlockEndSignals) has something. `cache` is what `file_system` was connected with. `guard`, if
// there is one, has the mount end when this process is killed.
Status ServeFileSystem(fs::client::FileSystem& file_system, KernelCacheNotifier& cache, MountGuard* guard,
                       const MountRequest& request, const UniqueFd& signals, Readiness& readiness);

}  // namespace termfs::mount
