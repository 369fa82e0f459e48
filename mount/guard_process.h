// SPDX-License-Identifier: Apache-2.0
//
// The process of a MountGuard. It has nothing of the mount's but what it was forked with, ignores every signal that can
// be ignored, has a session of its own, and is called termfs-guard.
//
// Thread-safety: none needed; GuardProcess is called in a new process with one thread.
#pragma once

#include <sys/types.h>

#include "base/result.h"

namespace termfs::mount {

// To the guard at the other end of `socket`: the file to write to when the mount has died.
Status HandOver(int socket, int file);

// Sends a byte by `socket` once it watches the thread that has forked it, of the process `mount`; takes the file that
// HandOver sends; and ends with that thread. REQUIRES: every signal is blocked.
[[noreturn]] void GuardProcess(int socket, pid_t mount);

}  // namespace termfs::mount
