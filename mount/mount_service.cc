// SPDX-License-Identifier: Apache-2.0
#include "mount/mount_service.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/log.h"
#include "mount/ending.h"
#include "mount/front_end.h"
#include "mount/front_end_reads.h"
#include "mount/fuse_server.h"
#include "mount/mount_point.h"

namespace termfs::mount {
namespace {

constexpr std::chrono::seconds kEndPatience{2};  // with a server that answers nothing while the mount ends
constexpr std::chrono::seconds kStopMargin{60};  // for the threads to end, on a busy machine
constexpr int kWaitMs = 60 * 1000;               // one turn of an endless wait

Status CheckEmpty(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(path.c_str()), &closedir);
  if (directory == nullptr) {
    return ErrnoStatus("mount point " + path);
  }
  while (const dirent* entry = readdir(directory.get())) {
    if (std::strcmp(entry->d_name, ".") != 0 && std::strcmp(entry->d_name, "..") != 0) {
      return Status::Error(ENOTEMPTY, "mount point " + path + " is not empty; choose an empty directory");
    }
  }
  return Status::Ok();
}

FuseServer::Options ToServerOptions(const MountRequest& request) {
  FuseServer::Options options;
  options.mountpoint = request.mountpoint;
  options.threads = request.config.threads;
  options.transport = request.config.fuse;
  options.mount_options = {"default_permissions", "subtype=termfs"};
  std::string source;
  for (const char c : tlib::ToString(request.address)) {
    if (c == ',' || c == '\\') {
      source += '\\';  // fsname is one element of a list
    }
    source += c;
  }
  options.mount_options.push_back("fsname=" + source);
  if (geteuid() == 0) {
    options.mount_options.emplace_back("allow_other");
  }
  for (const std::string& option : request.config.kernel) {
    options.mount_options.push_back(option);
  }
  return options;
}

// A request from the kernel through a serving thread to the file system and back.
Status CheckServed(const FuseServer& server, const std::string& mountpoint) {
  struct stat st {};
  if (stat(mountpoint.c_str(), &st) != 0) {
    return ErrnoStatus("the mount on " + mountpoint + " does not answer");
  }
  if (!server.IsAt(mountpoint) || st.st_ino != fs::kRootInode || !S_ISDIR(st.st_mode)) {
    return Status::Error(EIO, "something else was mounted over " + mountpoint);
  }
  return Status::Ok();
}

// A mount can succeed without the ring that it asked for. What counts is how CheckServed's request has come.
Status CheckTransport(const FuseServer& server, FuseTransport wanted) {
  if (wanted == FuseTransport::kRing && server.ring_requests() == 0) {
    return Status::Error(ENOTSUP, "FUSE over io_uring: the kernel sends its requests over /dev/fuse all the same");
  }
  return Status::Ok();
}

// Pages that were written through mappings go to the file system.
void FlushMappings(const FuseServer& server, const std::string& mountpoint) {
  const std::string place = server.Place();
  if (place.empty()) {
    LOG_WARNING("no path leads to the mount on {} any more: what programs have written through mappings may be lost",
                mountpoint);
    return;
  }
  // By a process of its own: one that is killed while it waits for an answer of its own mount is there for ever.
  const char* const words[] = {"sync", "--file-system", place.c_str(), nullptr};
  pid_t child = 0;
  int status = 0;
  const int error = posix_spawnp(&child, words[0], nullptr, nullptr, const_cast<char* const*>(words), environ);
  while (error == 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (error != 0) {
    LOG_WARNING("flushing {} before it is unmounted: {}", place, std::strerror(error));
  } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    LOG_WARNING("not all of {} could be flushed before it is unmounted", place);
  }
}

// The signals that end a mount, and then its wait for a server. Thread-safety: none.
class EndSignals {
 public:
  explicit EndSignals(const UniqueFd& fd) : fd_(fd.get()) {}
  // Until the kernel has ended the connection, or one came. True for a signal.
  bool Wait(int ended) {
    while (true) {
      pollfd ready[2] = {{.fd = ended, .events = POLLIN, .revents = 0}, {.fd = fd_, .events = POLLIN, .revents = 0}};
      const int polled = poll(ready, 2, kWaitMs);
      if (polled > 0) {
        came_ = (ready[0].revents & POLLIN) == 0;
        return came_;
      }
    }
  }
  // One came after that. The first is taken only here: it may be for other mounts of the process, too.
  bool Again() {
    signalfd_siginfo first{};
    [[maybe_unused]] const ssize_t got = std::exchange(came_, false) ? read(fd_, &first, sizeof(first)) : 0;
    pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
    return poll(&ready, 1, 0) > 0;
  }
  // Writes, before the mount began to end: programs have heard of those.
  void set_lost_before(uint64_t lost) { lost_before_ = lost; }
  uint64_t lost_before() const { return lost_before_; }

 private:
  const int fd_;
  bool came_ = false;
  uint64_t lost_before_ = 0;
};

// Programs have gone on without them; so a server that has gone is waited for as long as they would have waited.
Status AwaitServerForWrites(fs::client::FileSystem& file_system, EndSignals& signals) {
  if (file_system.AwaitsServerForWrites()) {
    LOG_WARNING("the server is gone, and has not taken all that was written; it is waited for, or a signal");
  }
  const uint64_t lost =
      file_system.AwaitServerForWrites([&signals] { return signals.Again(); }) - signals.lost_before();
  return lost == 0 ? Status::Ok()
                   : Status::Error(EIO,
                                   "the mount has ended without the server; writes that had returned and may be "
                                   "lost: " +
                                       std::to_string(lost));
}

// libfuse does not know the flag.
Status FollowNoSymlinks(const std::string& mountpoint) {
  mount_attr attributes{};
  attributes.attr_set = MOUNT_ATTR_NOSYMFOLLOW;
  if (mount_setattr(AT_FDCWD, mountpoint.c_str(), AT_SYMLINK_NOFOLLOW, &attributes, sizeof(attributes)) == 0) {
    return Status::Ok();
  }
  return errno == EPERM ? Status::Error(EPERM, "nosymfollow: only root mounts with it") : ErrnoStatus("nosymfollow");
}

void Watch(MountGuard* guard, const FuseServer& server, const std::string& mountpoint) {
  if (guard == nullptr) {
    return;
  }
  if (const Status watched = guard->Watch(fuse_session_fd(server.session()), mountpoint); !watched.ok()) {
    LOG_WARNING("should this process be killed, programs on {} may hang until umount -f: {}", mountpoint,
                watched.ToString());
  }
}

Status StartServing(FuseServer& server, FrontEnd& front, const MountRequest& request) {
  const auto make_thread = [&front]() -> Result<std::unique_ptr<FuseThread>> {
    ASSIGN_OR_RETURN(auto lane, front.file_system().OpenLane());
    return std::unique_ptr<FuseThread>(std::make_unique<FrontEndThread>(front, std::move(lane)));
  };
  if (request.address.remote()) {  // a READ there takes a round trip: one thread would make them one after the other
    return server.Start(make_thread);
  }
  return server.Start(make_thread, [&front] {
    return FrontEndReads::Create(front.file_system(), front.cache(), front.read_latency(), front.carried_reads());
  });
}

Status Run(fs::client::FileSystem& file_system, FuseServer& server, FrontEnd& front, KernelCacheNotifier& cache,
           MountGuard* guard, const MountRequest& request, EndSignals& signals, Readiness& readiness) {
  RETURN_IF_ERROR(server.Mount());
  if (!request.config.follow_symlinks) {
    RETURN_IF_ERROR(FollowNoSymlinks(request.mountpoint));
  }
  Watch(guard, server, request.mountpoint);
  cache.Attach(server.session(), request.mountpoint);  // before the kernel is given anything to keep
  Status status = StartServing(server, front, request);
  if (status.ok()) {
    status = CheckServed(server, request.mountpoint);
  }
  bool told_to_end = false;
  if (status.ok()) {
    status = CheckTransport(server, request.config.fuse);
  }
  if (status.ok()) {
    LOG_INFO("{} is mounted on {}; fuse: {}, libfuse {}", tlib::ToString(request.address), request.mountpoint,
             server.transport(), fuse_pkgversion());
    readiness.Ok();
    told_to_end = signals.Wait(server.ended_fd());
  }
  signals.set_lost_before(file_system.lost_writes());
  const auto progress = [&, looks = uint64_t{0}]() mutable {
    looks += file_system.AwaitsServerForWrites() && !signals.Again() ? 1 : 0;  // it waits, and is not stuck
    return server.requests() + looks;
  };
  const Ending ending(kEndPatience, progress,
                      [&file_system] { file_system.Abandon("the mount ends, and the server does not answer"); });
  if (told_to_end) {
    FlushMappings(server, request.mountpoint);
    status = server.Unmount(/*lazily=*/true);
  } else if (!status.ok()) {
    if (const Status unmounted = server.Unmount(/*lazily=*/true); !unmounted.ok()) {
      LOG_WARNING("{}", unmounted.ToString());
    }
  }
  cache.Detach();
  const Status stopped = server.Stop(kEndPatience + kStopMargin + request.config.reconnect);
  TERMFS_CHECK(stopped.ok());  // no call waits for the server any more
  LOG_INFO("{} is unmounted", request.mountpoint);
  return status;
}

}  // namespace

Status CheckMountPoint(const std::string& path) {
  struct stat st {};
  if (stat(path.c_str(), &st) != 0) {
    if (SaysDead(errno)) {
      return Status::Error(ENOTCONN, "mount point " + path + ": a dead mount is there, end it with termfs umount");
    }
    return ErrnoStatus("mount point " + path);
  }
  if (!S_ISDIR(st.st_mode)) {
    return Status::Error(ENOTDIR, "mount point " + path + " is no directory");
  }
  ASSIGN_OR_RETURN(const std::string type, MountType(path));
  if (type == "fuse.termfs") {
    return Status::Error(EBUSY,
                         "mount point " + path + ": a termfs is mounted there already, end it with termfs umount");
  }
  Status empty = CheckEmpty(path);
  return empty.code() == ENOTEMPTY && !type.empty()
             ? Status::Error(EBUSY, "mount point " + path + ": something is mounted there already")
             : std::move(empty);
}

fs::client::MountOptions ToClientOptions(const MountRequest& request) {
  using tlib::client::BitmapMode;
  const MountConfig& config = request.config;
  fs::client::MountOptions options;
  options.session.program = "mount";
  options.session.bitmap = config.bitmap.value_or(request.address.remote() ? BitmapMode::kPulled : BitmapMode::kLive);
  options.session.call_timeout = config.timeout;
  options.session.reconnect = config.reconnect;
  options.session.wire = config.rdma_wire;
  options.session.plain_data = config.plain_data;
  options.max_io_bytes = kMaxIo;
  options.late_lanes = true;
  options.grants = config.grants;
  options.access_times = {.files = config.access_times && !config.read_only,
                          .directories = config.directory_access_times};
  return options;
}

Status ServeFileSystem(fs::client::FileSystem& file_system, KernelCacheNotifier& cache, MountGuard* guard,
                       const MountRequest& request, const UniqueFd& signals, Readiness& readiness) {
  ASSIGN_OR_RETURN(const std::unique_ptr<fs::client::Lane> last_lane, file_system.OpenLane());
  FrontEnd front(file_system, cache, request.address, request.config);
  EndSignals end_signals(signals);
  Status status;
  {
    ASSIGN_OR_RETURN(const auto server, FuseServer::Create(FrontEnd::Operations(), &front, ToServerOptions(request)));
    front.CountRequests(server.get());
    status = Run(file_system, *server, front, cache, guard, request, end_signals, readiness);
  }
  front.ReleaseAll(*last_lane);
  Status taken = AwaitServerForWrites(file_system, end_signals);
  return status.ok() ? std::move(taken) : status;
}

}  // namespace termfs::mount
