// SPDX-License-Identifier: Apache-2.0
//
// MountGuard: a small process beside a mount's, which has the kernel end the mount's connection when the mount's
// process is killed, or crashes. The kernel does so by itself only when all threads have ended; and a thread that tells
// it to drop a directory entry may wait for a request that its own, dying process will never answer. See "A guard for a
// killed mount".
//
// Thread-safety: one thread.
// Ownership:     owns a process and a thread. When it is destroyed both end, and nothing else happens.
// Errors:        without a guard a mount works all the same; so errors are for the log.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "base/result.h"
#include "base/unique_fd.h"

namespace termfs::mount {

class MountGuard {
 public:
  // Returns when the process watches this one. To be called before there is much memory that it would share.
  static Result<std::unique_ptr<MountGuard>> Start();
  // REQUIRES: the mount's connection has ended, or is not to be ended by the guard any more.
  ~MountGuard();
  MountGuard(const MountGuard&) = delete;
  MountGuard& operator=(const MountGuard&) = delete;

  // From now on the connection of the open FUSE device `device`, mounted on `mountpoint`, ends with this process.
  // Takes the signals of a crash for that, where nobody else has. ENOENT, EACCES, EPERM: the kernel's switch for it
  // cannot be had. REQUIRES: called once, in a process that has one guard.
  Status Watch(int device, const std::string& mountpoint);

 private:
  explicit MountGuard(UniqueFd to_process) : to_process_(std::move(to_process)) {}
  // The thread: starts the process, says so, and waits for its end.
  void Run(UniqueFd from_mount, std::promise<Status> started);
  Status StartProcess(UniqueFd from_mount);

  UniqueFd to_process_;
  pid_t child_ = -1;  // the thread's, as is the next until it has said that there is a process
  UniqueFd process_;  // pidfd
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace termfs::mount
