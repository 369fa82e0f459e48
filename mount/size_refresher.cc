// SPDX-License-Identifier: Apache-2.0
#include "mount/size_refresher.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "base/log.h"
#include "base/start_thread.h"

namespace termfs::mount {

using std::chrono::steady_clock;

namespace {

constexpr std::chrono::milliseconds kPatience{1000};  // of who waits; far below what the server gives a client
constexpr std::chrono::milliseconds kLooks{500};      // for so long the kernel is asked again
constexpr std::chrono::seconds kIdle{10};             // the waits are in loops; this only bounds one

// A descriptor of a thread with its own table. By system calls: what watches descriptors in a sanitizer's build knows
// one table only.
class OwnFd {
 public:
  explicit OwnFd(long fd) : fd_(static_cast<int>(fd)) {}
  ~OwnFd() {
    if (fd_ >= 0) {
      syscall(SYS_close, fd_);
    }
  }
  OwnFd(const OwnFd&) = delete;
  OwnFd& operator=(const OwnFd&) = delete;
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_;
};

bool Stat(int fd, int flags, struct statx& found) {
  return syscall(SYS_statx, fd, "", AT_EMPTY_PATH | flags, STATX_SIZE, &found) == 0;
}

// As the kernel's FUSE makes them (fuse_encode_fh): the number, the greater half first, and the generation.
struct Handle {
  uint32_t bytes = 3 * sizeof(uint32_t);
  int32_t type = 0x81;
  std::array<uint32_t, 3> data{};
};

// In the file system of the working directory. -1 with errno: EPERM, this process may not.
long OpenByHandle(uint64_t ino, uint64_t generation) {
  Handle handle{
      .data = {static_cast<uint32_t>(ino >> 32), static_cast<uint32_t>(ino), static_cast<uint32_t>(generation)}};
  return syscall(SYS_open_by_handle_at, AT_FDCWD, &handle, O_PATH | O_CLOEXEC);
}

// The working directory of a thread that has one of its own: a mount by whose handles nothing else can be opened, as an
// O_PATH descriptor will not do.
class WorkingDirectory {
 public:
  explicit WorkingDirectory(const std::string& path) : there_(chdir(path.c_str()) == 0) {}
  ~WorkingDirectory() {
    if (there_ && chdir("/") != 0) {
      std::abort();  // there is no system without it
    }
  }
  WorkingDirectory(const WorkingDirectory&) = delete;
  WorkingDirectory& operator=(const WorkingDirectory&) = delete;
  bool there() const { return there_; }

 private:
  const bool there_;
};

}  // namespace

SizeRefresher::SizeRefresher(std::string mountpoint, dev_t device)
    : mountpoint_(std::move(mountpoint)), device_(device) {}

SizeRefresher::~SizeRefresher() {
  std::optional<std::thread> thread;
  {
    MutexLock lock(mutex_);
    ending_ = true;
    changed_.NotifyAll();
    thread = std::move(thread_);
  }
  if (thread) {
    thread->join();
  }
}

bool SizeRefresher::Refresh(uint64_t ino, uint64_t generation, std::function<bool()> gives_up) {
  MutexLock lock(mutex_);
  const std::shared_ptr<Job> job = Queue(ino, generation, std::move(gives_up), false);
  if (job == nullptr) {
    return false;
  }
  Await(*job);
  return job->taken;
}

void SizeRefresher::BeginRefresh(uint64_t ino, uint64_t generation, std::function<bool()> gives_up) {
  MutexLock lock(mutex_);
  Queue(ino, generation, std::move(gives_up), false);
}

std::optional<uint64_t> SizeRefresher::Look(uint64_t ino, uint64_t generation) {
  MutexLock lock(mutex_);
  const std::shared_ptr<Job> job = Queue(ino, generation, nullptr, true);
  if (job == nullptr) {
    return std::nullopt;
  }
  Await(*job);
  return job->taken ? std::optional(job->size) : std::nullopt;
}

bool SizeRefresher::useless() {
  MutexLock lock(mutex_);
  return useless_;
}

std::shared_ptr<SizeRefresher::Job> SizeRefresher::Queue(uint64_t ino, uint64_t generation,
                                                         std::function<bool()> gives_up, bool looks) {
  if (useless_ || ending_) {
    return nullptr;
  }
  if (!thread_) {
    Result<std::thread> started = StartThread([this] { Run(); });
    if (!started.ok()) {
      LOG_WARNING("sizes of files that others cut off may be shown late: {}", started.status().ToString());
      useless_ = true;
      return nullptr;
    }
    thread_ = std::move(*started);
  }
  queue_.push_back(std::shared_ptr<Job>(
      new Job{.ino = ino, .generation = generation, .gives_up = std::move(gives_up), .looks = looks}));
  changed_.NotifyAll();
  return queue_.back();
}

void SizeRefresher::Await(const Job& job) {
  const auto deadline = steady_clock::now() + kPatience;
  while (!job.done && !useless_ && steady_clock::now() < deadline) {
    changed_.WaitUntil(mutex_, deadline);
  }
}

void SizeRefresher::Run() {
  pthread_setname_np(pthread_self(), "termfs-sizes");
  // From here on no log, which may be a descriptor.
  Outcome outcome = unshare(CLONE_FS) == 0 && syscall(SYS_close_range, 0U, ~0U, CLOSE_RANGE_UNSHARE) == 0
                        ? Outcome::kTaken
                        : Outcome::kNever;
  while (outcome != Outcome::kNever) {
    std::shared_ptr<Job> next;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !ending_) {
        changed_.WaitFor(mutex_, kIdle);
      }
      if (ending_) {
        return;
      }
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    outcome = Do(*next);
    MutexLock lock(mutex_);
    next->done = true;
    next->taken = outcome == Outcome::kTaken;
    changed_.NotifyAll();
  }
  MutexLock lock(mutex_);
  useless_ = true;
  changed_.NotifyAll();
}

SizeRefresher::Outcome SizeRefresher::Do(Job& job) const {
  const WorkingDirectory mount(mountpoint_);
  struct statx known {};
  if (!mount.there() || !Stat(AT_FDCWD, AT_STATX_DONT_SYNC, known) ||
      makedev(known.stx_dev_major, known.stx_dev_minor) != device_) {
    return Outcome::kNotTaken;  // something else is mounted there, or nothing any more
  }
  const OwnFd file(OpenByHandle(job.ino, job.generation));
  if (!file.valid()) {
    return errno == EPERM ? Outcome::kNever : errno == ESTALE ? Outcome::kTaken : Outcome::kNotTaken;
  }
  if (!job.looks) {
    return Ask(job, file.get());
  }
  if (!Stat(file.get(), AT_STATX_DONT_SYNC, known)) {
    return Outcome::kNotTaken;
  }
  job.size = known.stx_size;
  return Outcome::kTaken;
}

SizeRefresher::Outcome SizeRefresher::Ask(const Job& job, int file) {
  const auto deadline = steady_clock::now() + kLooks;
  do {
    struct statx answered {};
    struct statx known {};
    if (!Stat(file, AT_STATX_FORCE_SYNC, answered) || !Stat(file, AT_STATX_DONT_SYNC, known)) {
      return Outcome::kNotTaken;
    }
    if (known.stx_size == answered.stx_size) {
      return Outcome::kTaken;
    }
  } while (!job.gives_up() && steady_clock::now() < deadline);
  return Outcome::kNotTaken;
}

}  // namespace termfs::mount
