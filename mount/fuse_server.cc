// SPDX-License-Identifier: Apache-2.0
#include "mount/fuse_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "base/log.h"
#include "base/mutex.h"
#include "mount/fusermount.h"

namespace termfs::mount {
namespace {

// What libfuse said last, for the text of an error: it reports details only through its log.
class LibraryLog {
 public:
  static LibraryLog& Get() {
    static LibraryLog log;
    return log;
  }
  std::string Take() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return std::exchange(last_, {});
  }
  static void Line(fuse_log_level level, const char* format, va_list arguments) {
    char text[512];
    std::vsnprintf(text, sizeof(text), format, arguments);
    std::string_view line(text);
    while (!line.empty() && line.back() == '\n') {
      line.remove_suffix(1);
    }
    if (level <= FUSE_LOG_ERR) {
      LOG_INFO("libfuse: {}", line);
      MutexLock lock(Get().mutex_);
      Get().last_ = line;
    } else {
      LOG_DEBUG("libfuse: {}", line);
    }
  }

 private:
  Mutex mutex_;
  std::string last_ GUARDED_BY(mutex_);
};

Status LibraryError(int code, const std::string& what) {
  const std::string said = LibraryLog::Get().Take();
  return said.empty() ? Status::Errno(code, what) : Status::Error(code, what + " (" + said + ")");
}

Status UnmountAt(const std::string& place, bool lazily) {
  if (umount2(place.c_str(), UMOUNT_NOFOLLOW | (lazily ? MNT_DETACH : 0)) == 0) {
    return Status::Ok();
  }
  return errno == EPERM ? RunFusermount(place, lazily) : ErrnoStatus((lazily ? "detach " : "unmount ") + place);
}

}  // namespace

Result<std::unique_ptr<FuseServer>> FuseServer::Create(const fuse_lowlevel_ops& operations, void* userdata,
                                                       const Options& options) {
  fuse_set_log_func(&LibraryLog::Line);
  std::unique_ptr<FuseServer> server(new FuseServer);
  server->options_ = options;
  server->reads_past_libfuse_ = operations.read == nullptr;
  server->ended_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!server->ended_.valid()) {
    return ErrnoStatus("create an eventfd");
  }
  fuse_args arguments = FUSE_ARGS_INIT(0, nullptr);
  bool added = fuse_opt_add_arg(&arguments, "termfs") == 0;
  for (const std::string& option : options.mount_options) {
    added = added && fuse_opt_add_arg(&arguments, "-o") == 0 && fuse_opt_add_arg(&arguments, option.c_str()) == 0;
  }
  if (added) {
    server->session_ = fuse_session_new(&arguments, &operations, sizeof(operations), userdata);
  }
  fuse_opt_free_args(&arguments);
  if (server->session_ == nullptr) {
    return LibraryError(EINVAL, "set up the FUSE session");
  }
  return server;
}

FuseServer::~FuseServer() {
  if (session_ == nullptr) {
    return;
  }
  if (mounted_) {
    if (!unmounts_ && !HasEnded()) {
      if (const Status unmounted = Unmount(/*lazily=*/true); !unmounted.ok()) {
        LOG_WARNING("{}", unmounted.ToString());
      }
    }
    const Status stopped = Stop(std::chrono::seconds(60));
    TERMFS_CHECK(stopped.ok());
  }
  if (mounted_ && HasEnded()) {
    fuse_session_unmount(session_);  // unmounts nothing then; otherwise it would go by the path
  }
  fuse_session_destroy(session_);  // closes the session's descriptor
}

Status FuseServer::Mount() {
  if (access("/dev/fuse", F_OK) != 0) {
    return ErrnoStatus("no /dev/fuse: the kernel's FUSE is not available here");
  }
  if (fuse_session_mount(session_, options_.mountpoint.c_str()) != 0) {
    return LibraryError(EIO, "mount on " + options_.mountpoint);
  }
  const Result<MountNumber> mount = MountAt(options_.mountpoint);
  if (!mount.ok()) {
    fuse_session_unmount(session_);
    return mount.status();
  }
  mount_ = *mount;
  mounted_ = true;
  fuse_custom_io io{};
  io.writev = &FuseServer::WriteReply;
  io.read = &FuseServer::ReadRequest;
  const int error = fuse_session_custom_io(session_, &io, fuse_session_fd(session_));
  if (error != 0) {
    return LibraryError(error < -1 ? -error : EIO, "take over the FUSE session's transfers");
  }
  return Status::Ok();
}

bool FuseServer::HasEnded() const {
  pollfd device{.fd = fuse_session_fd(session_), .events = 0, .revents = 0};
  return poll(&device, 1, 0) > 0 && (device.revents & POLLERR) != 0;
}

std::optional<MountEntry> FuseServer::Entry() const {
  const Result<std::vector<MountEntry>> table = ReadMountTable();
  for (const MountEntry& entry : table.ok() ? *table : std::vector<MountEntry>{}) {
    if (entry.mount == mount_) {
      return entry;
    }
  }
  return std::nullopt;
}

std::string FuseServer::Place() const {
  const std::optional<MountEntry> entry = Entry();
  return entry && IsAt(entry->path) ? entry->path : "";
}

bool FuseServer::IsAt(const std::string& path) const {
  const Result<MountNumber> reached = MountAt(path);
  return reached.ok() && *reached == mount_;
}

Status FuseServer::Unmount(bool lazily) {
  unmounts_ = true;
  const std::string place = Place();
  if (place.empty()) {
    ASSIGN_OR_RETURN(const std::vector<MountEntry> table, ReadMountTable());
    const auto covered =
        std::find_if(table.begin(), table.end(), [this](const MountEntry& entry) { return entry.mount == mount_; });
    return covered == table.end()
               ? Status::Ok()  // somebody else has unmounted it
               : Status::Error(EBUSY, "something is mounted over " + covered->path +
                                          "; the mount below it is dead from now on, and stays until it is unmounted");
  }
  Status unmounted = UnmountAt(place, /*lazily=*/false);
  if (unmounted.code() == EINVAL || unmounted.code() == ENOENT) {
    return Status::Ok();  // somebody else was faster
  }
  if (unmounted.ok() || !lazily) {
    return unmounted;
  }
  LOG_WARNING("{} is in use ({}); it is detached, programs that use it get errors from now on", place,
              unmounted.ToString());
  return UnmountAt(place, /*lazily=*/true);
}

uint64_t FuseServer::requests() const {
  uint64_t sum = 0;
  for (const auto& worker : workers()) {
    sum += worker->guest.requests.value();
  }
  return sum;
}

uint64_t FuseServer::ring_requests() const {
  uint64_t sum = 0;
  for (const auto& worker : workers()) {
    sum += worker->guest.received_by_ring.value();
  }
  return sum;
}

}  // namespace termfs::mount
