// SPDX-License-Identifier: Apache-2.0
#include "mount/guard.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/log.h"
#include "mount/guard_process.h"
#include "mount/mounts_below.h"

namespace termfs::mount {
namespace {

constexpr int kStartMs = 60 * 1000;

// The number of a FUSE device's connection, from the kernel if it says that (before Linux 6.18 it does not), otherwise
// of what is mounted there.
Result<unsigned> ConnectionOf(int device, const std::string& mountpoint) {
  std::ifstream file("/proc/self/fdinfo/" + std::to_string(device));
  std::string name;
  for (unsigned number = 0; file >> name; file.ignore(256, '\n')) {
    if (name == "fuse_connection:" && file >> number) {
      return number;
    }
  }
  ASSIGN_OR_RETURN(const dev_t mounted, DeviceOf(mountpoint));
  return minor(mounted);
}

// The kernel's folder of connections, mounted nowhere.
Result<UniqueFd> MountControls() {
  const UniqueFd context(fsopen("fusectl", FSOPEN_CLOEXEC));
  if (!context.valid() || fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) {
    return ErrnoStatus("open the fusectl file system");
  }
  UniqueFd folder(fsmount(context.get(), FSMOUNT_CLOEXEC, 0));
  return folder.valid() ? Result<UniqueFd>(std::move(folder)) : ErrnoStatus("mount the fusectl file system");
}

// The file that ends a connection when it is written. It means that connection for ever, not a later one of its number.
Result<UniqueFd> OpenSwitch(unsigned connection) {
  const std::string name = std::to_string(connection) + "/abort";
  const std::string path = "/sys/fs/fuse/connections/" + name;
  UniqueFd file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.valid()) {
    return file;
  }
  const Status why_not = ErrnoStatus(path);
  const Result<UniqueFd> folder = MountControls();
  if (!folder.ok()) {
    return why_not;
  }
  file.Reset(openat(folder->get(), name.c_str(), O_WRONLY | O_CLOEXEC));
  return file.valid() ? Result<UniqueFd>(std::move(file)) : ErrnoStatus("fusectl: " + name);
}

// Where the guard is told of a crash; -1: there is none.
std::atomic<int> crash_socket{-1};

// A process that crashes waits for all its threads before any of them ends, and so before the guard would be signalled.
void TellOfCrash(int number) {
  const char word = 0;
  [[maybe_unused]] const ssize_t sent =
      send(crash_socket.load(std::memory_order_relaxed), &word, sizeof(word), MSG_DONTWAIT | MSG_NOSIGNAL);
  raise(number);  // by default from now on, as soon as this has returned
}

// What somebody else handles, a sanitizer, say, is left to that.
void TellOfCrashes(int socket) {
  crash_socket.store(socket, std::memory_order_relaxed);
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS, SIGTRAP}) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) {
      action.sa_handler = TellOfCrash;
      action.sa_flags = static_cast<int>(SA_RESETHAND);
      sigaction(number, &action, nullptr);
    }
  }
}

// The guard's word that it is there.
Status AwaitWord(int from) {
  pollfd ready{.fd = from, .events = POLLIN, .revents = 0};
  char word = 0;
  int polled = 0;
  do {
    polled = poll(&ready, 1, kStartMs);
  } while (polled < 0 && errno == EINTR);
  if (polled <= 0 || recv(from, &word, sizeof(word), 0) != sizeof(word)) {
    return Status::Error(ECHILD, "the guard of the mount did not start");
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<MountGuard>> MountGuard::Start() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus("create a pair of sockets");
  }
  std::unique_ptr<MountGuard> guard(new MountGuard(UniqueFd(ends[0])));
  std::promise<Status> started;
  std::future<Status> word = started.get_future();
  guard->thread_ = std::thread(&MountGuard::Run, guard.get(), UniqueFd(ends[1]), std::move(started));
  RETURN_IF_ERROR(word.get());
  return guard;
}

MountGuard::~MountGuard() {
  crash_socket.store(-1, std::memory_order_relaxed);
  ending_.store(true, std::memory_order_relaxed);
  if (process_.valid()) {
    syscall(SYS_pidfd_send_signal, process_.get(), SIGKILL, nullptr, 0);
  }
  thread_.join();
}

Status MountGuard::Watch(int device, const std::string& mountpoint) {
  ASSIGN_OR_RETURN(const unsigned connection, ConnectionOf(device, mountpoint));
  ASSIGN_OR_RETURN(const UniqueFd file, OpenSwitch(connection));
  RETURN_IF_ERROR(HandOver(to_process_.get(), file.get()));
  TellOfCrashes(to_process_.get());
  return Status::Ok();
}

// The kernel signals the end of the thread that has made the process. Any other may be waiting for its own mount when
// it is killed, the main thread, too; this one waits for nothing else.
void MountGuard::Run(UniqueFd from_mount, std::promise<Status> started) {
  pthread_setname_np(pthread_self(), "termfs-guarded");
  sigset_t signals;
  sigfillset(&signals);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // the process inherits that
  started.set_value(StartProcess(std::move(from_mount)));
  int status = 0;
  while (child_ > 0 && waitpid(child_, &status, 0) < 0 && errno == EINTR) {
  }
  if (child_ > 0 && !ending_.load(std::memory_order_relaxed)) {
    LOG_WARNING("the mount's guard, process {}, has ended: should this process be killed, programs may hang", child_);
  }
}

Status MountGuard::StartProcess(UniqueFd from_mount) {
  const pid_t mount = getpid();
  child_ = fork();
  if (child_ == 0) {
    GuardProcess(from_mount.get(), mount);
  }
  if (child_ < 0) {
    return ErrnoStatus("start a process that guards the mount");
  }
  process_.Reset(static_cast<int>(syscall(SYS_pidfd_open, child_, 0)));
  if (!process_.valid()) {
    Status failed = ErrnoStatus("watch the process that guards the mount");
    kill(child_, SIGKILL);
    return failed;
  }
  from_mount.Reset(-1);
  return AwaitWord(to_process_.get());
}

}  // namespace termfs::mount
