// SPDX-License-Identifier: Apache-2.0
//
// Locks of files and directories by flock: held as long as the descriptor, and lost by a process that dies.
//
// Thread-safety: free functions.
// Errors:        those of flock.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace termfs {

// Locks it, once whoever holds it and is dying is gone: a process that was killed with gigabytes to give back has its
// locks for a second or more. False: somebody holds it. `holder`: by which process, 0 if that is unknown.
Result<bool> LockWhenDead(const UniqueFd& fd, const std::string& path, const std::function<pid_t()>& holder);
// Which process has locked it, by the kernel. 0: none that can be seen from here; or the file system numbers its
// devices in a way of its own (not tmpfs).
pid_t LockedBy(const UniqueFd& fd);

}  // namespace termfs
