// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <thread>

#include "base/unique_fd.h"
#include "mount/command.h"
#include "mount/mount_point.h"

namespace termfs::mount {
namespace {

constexpr std::chrono::milliseconds kBusyPatience{1000};
constexpr std::chrono::milliseconds kBusyPause{10};
constexpr int kEndMs = 60 * 1000;  // the mount's process flushes and ends

// The absolute path, resolving all but the last component: the mount on it may be dead.
Result<std::string> Resolve(const std::string& path) {
  std::string plain = path;
  while (plain.size() > 1 && plain.back() == '/') {
    plain.pop_back();
  }
  const std::unique_ptr<char, void (*)(void*)> whole(realpath(plain.c_str(), nullptr), &free);
  if (whole != nullptr) {
    return std::string(whole.get());
  }
  const size_t slash = plain.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : slash == 0 ? "/" : plain.substr(0, slash);
  const std::unique_ptr<char, void (*)(void*)> above(realpath(parent.c_str(), nullptr), &free);
  if (above == nullptr) {
    return ErrnoStatus(path);
  }
  const std::string base(above.get());
  return (base == "/" ? base : base + "/") + plain.substr(slash == std::string::npos ? 0 : slash + 1);
}

Status RunFusermount(const std::string& mountpoint, bool lazily) {
  const pid_t child = fork();
  if (child < 0) {
    return ErrnoStatus("start fusermount3");
  }
  if (child == 0) {
    execlp("fusermount3", "fusermount3", "-u", lazily ? "-qz" : "-q", "--", mountpoint.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) {
      return ErrnoStatus("wait for fusermount3");
    }
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return Status::Error(EBUSY, "fusermount3 could not unmount " + mountpoint);
  }
  return Status::Ok();
}

Status Unmount(const std::string& mountpoint, bool lazily) {
  if (umount2(mountpoint.c_str(), UMOUNT_NOFOLLOW | (lazily ? MNT_DETACH : 0)) == 0) {
    return Status::Ok();
  }
  if (errno == EPERM) {
    ASSIGN_OR_RETURN(const std::optional<uid_t> owner, MountOwner(mountpoint));
    if (owner.has_value() && *owner != getuid()) {
      return Status::Error(EPERM, "only root, or who mounted it, may unmount " + mountpoint);
    }
    return RunFusermount(mountpoint, lazily);
  }
  if (errno == EBUSY) {
    return Status::Error(EBUSY, mountpoint + " is in use; find out by whom with fuser -vm, or detach it with --lazy");
  }
  return ErrnoStatus("unmount " + mountpoint);
}

Status WaitForProcess(const UniqueFd& process, int pid) {
  pollfd ended{.fd = process.get(), .events = POLLIN, .revents = 0};
  int polled = 0;
  do {
    polled = poll(&ended, 1, kEndMs);
  } while (polled < 0 && errno == EINTR);
  if (polled <= 0) {
    return Status::Error(ETIMEDOUT, "unmounted, but its process " + std::to_string(pid) +
                                        " has not ended: it may wait for a server that is gone, with what was written; "
                                        "SIGTERM ends that");
  }
  return Status::Ok();
}

// Whoever looks at all file systems, such as df, holds each for an instant.
Status UnmountSoon(const std::string& mountpoint, bool lazily) {
  const auto deadline = std::chrono::steady_clock::now() + kBusyPatience;
  while (true) {
    Status done = Unmount(mountpoint, lazily);
    if (done.code() != EBUSY || std::chrono::steady_clock::now() >= deadline) {
      return done;
    }
    std::this_thread::sleep_for(kBusyPause);
  }
}

Status Run(const UmountArguments& arguments) {
  ASSIGN_OR_RETURN(const std::string mountpoint, Resolve(arguments.mountpoint));
  ASSIGN_OR_RETURN(const std::string type, MountType(mountpoint));
  if (type.empty() && access(mountpoint.c_str(), F_OK) != 0) {
    return ErrnoStatus(mountpoint);
  }
  if (type != "fuse.termfs") {
    return Status::Error(EINVAL, type.empty() ? "nothing is mounted on " + mountpoint
                                              : "what is mounted on " + mountpoint + " is no termfs but " + type);
  }
  // A dead mount has no process to wait for.
  const Result<MountDescription> description = DescribeMount(mountpoint);
  UniqueFd process;
  if (description.ok()) {
    process = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, description->pid, 0)));
  }
  RETURN_IF_ERROR(UnmountSoon(mountpoint, arguments.lazily));
  // Detached but in use, it lives on until its last user is gone.
  if (process.valid() && !arguments.lazily) {
    return WaitForProcess(process, description->pid);
  }
  return Status::Ok();
}

}  // namespace

int RunUmount(const UmountArguments& arguments) {
  const Status status = Run(arguments);
  return status.ok() ? kExitOk : Failed(status);
}

}  // namespace termfs::mount
