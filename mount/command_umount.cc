// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <optional>
#include <thread>

#include "base/unique_fd.h"
#include "mount/command.h"
#include "mount/fusermount.h"
#include "mount/mount_point.h"
#include "mount/mount_table.h"
#include "mount/mounts_below.h"

namespace termfs::mount {
namespace {

constexpr char kMountType[] = "fuse.termfs";
constexpr std::chrono::milliseconds kEndsAtOnce{300};  // usual for a mount that is mounted nowhere else

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

// Whether somebody else has unmounted it meanwhile, in any way.
bool IsGone(const std::string& mountpoint, dev_t device) {
  const Result<std::vector<MountEntry>> table = ReadMountTable();
  return table.ok() && std::none_of(table->begin(), table->end(), [&](const MountEntry& entry) {
           return entry.path == mountpoint && entry.mount.device == device;
         });
}

// Whoever looks at all file systems, such as df, holds each for an instant.
Status UnmountSoon(const std::string& mountpoint, const Result<dev_t>& device, bool lazily) {
  const auto deadline = std::chrono::steady_clock::now() + kBusyPatience;
  while (true) {
    Status done = Unmount(mountpoint, lazily);
    if (!done.ok() && device.ok() && IsGone(mountpoint, *device)) {
      return Status::Ok();
    }
    if (done.code() != EBUSY || std::chrono::steady_clock::now() >= deadline) {
      return done;
    }
    std::this_thread::sleep_for(kBusyPause);
  }
}

void Note(const std::string& text) { std::fprintf(stderr, "termfs: %s\n", text.c_str()); }

// Whether the mount's process has the same number here. One that says nothing is thought to.
bool Knows(const MountDescription& description) {
  const uint64_t here = PidNamespace();
  return description.pid_namespace == 0 || here == 0 || description.pid_namespace == here;
}

bool EndsWithin(const UniqueFd& process, std::chrono::milliseconds patience) {
  pollfd ends{.fd = process.get(), .events = POLLIN, .revents = 0};
  return poll(&ends, 1, static_cast<int>(patience.count())) > 0;
}

// The mounts of that device, by their numbers.
std::map<uint64_t, std::string> MountsOf(dev_t device) {
  std::map<uint64_t, std::string> mounts;
  const Result<std::vector<MountEntry>> table = ReadMountTable();
  for (const MountEntry& entry : table.ok() ? *table : std::vector<MountEntry>{}) {
    if (entry.mount.device == device && entry.type == kMountType) {
      mounts[entry.mount.number] = entry.path;
    }
  }
  return mounts;
}

// Where else something of that device is mounted; "": nowhere that this process may look. `before`: what was mounted
// when it was mounted here; the device's number may be another file system's by now, and a mount's another mount's.
std::string OtherPlace(dev_t device, const std::map<uint64_t, std::string>& before) {
  for (const auto& [number, path] : MountsOf(device)) {
    if (const auto found = before.find(number); found != before.end() && found->second == path) {
      return "on " + path;
    }
  }
  const auto apart = MountedInAnotherNamespace(device);
  return apart.has_value()
             ? "on " + apart->second + " in the mount namespace of process " + std::to_string(apart->first)
             : "";
}

Status Run(const UmountArguments& arguments) {
  ASSIGN_OR_RETURN(const std::string mountpoint, Resolve(arguments.mountpoint));
  ASSIGN_OR_RETURN(const std::string type, MountType(mountpoint));
  if (type.empty() && access(mountpoint.c_str(), F_OK) != 0) {
    return ErrnoStatus(mountpoint);
  }
  if (type != kMountType) {
    return Status::Error(EINVAL, type.empty() ? "nothing is mounted on " + mountpoint
                                              : "what is mounted on " + mountpoint + " is no termfs but " + type);
  }
  // A dead mount has no process to wait for.
  const Result<MountDescription> description = DescribeMount(mountpoint);
  const Result<dev_t> device = DeviceOf(mountpoint);
  const auto mounts = device.ok() ? MountsOf(*device) : std::map<uint64_t, std::string>{};
  const bool is_here = description.ok() && Knows(*description);
  UniqueFd process;
  if (is_here) {
    process = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, description->pid, 0)));
  }
  RETURN_IF_ERROR(UnmountSoon(mountpoint, device, arguments.lazily));
  if (!description.ok() || arguments.lazily) {
    return Status::Ok();  // detached but in use, it lives on until its last user is gone
  }
  if (process.valid() && EndsWithin(process, kEndsAtOnce)) {
    return Status::Ok();  // its device's number may be another file system's by now
  }
  if (const std::string elsewhere = device.ok() ? OtherPlace(*device, mounts) : ""; !elsewhere.empty()) {
    Note(mountpoint + " is unmounted, but the same file system is mounted " + elsewhere + " and goes on there");
    return Status::Ok();
  }
  if (!is_here) {
    Note(mountpoint + " is unmounted; its process is in another PID namespace, its end is not waited for");
    return Status::Ok();
  }
  return process.valid() ? WaitForProcess(process, description->pid) : Status::Ok();
}

}  // namespace

int RunUmount(const UmountArguments& arguments) {
  const Status status = Run(arguments);
  return status.ok() ? kExitOk : Failed(status);
}

}  // namespace termfs::mount
