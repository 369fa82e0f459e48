// SPDX-License-Identifier: Apache-2.0
//
// Locks hold between all mounts of a volume: the kernel keeps none by itself. fcntl's come as ranges, flock's as the
// whole file; an owner of ranges is the kernel's number for a process or, of open-file-description locks, an open file.
#include <fcntl.h>
#include <sys/file.h>

#include "mount/convert.h"
#include "mount/errno.h"
#include "mount/front_end.h"
#include "mount/fuse_operations.h"

namespace termfs::mount {
namespace {

class ThreadSleeps final : public fs::client::LockSleep {
 public:
  Status Prepare() override { return wait_.Prepare(); }
  void Begin() override { wait_.Begin(); }
  void End() override { wait_.End(); }

 private:
  FuseServer::Wait wait_;
};

fs::LockType TypeOf(short type) {
  return type == F_RDLCK ? fs::LockType::kRead : type == F_WRLCK ? fs::LockType::kWrite : fs::LockType::kUnlock;
}

short NumberOf(fs::LockType type) {
  return type == fs::LockType::kRead ? F_RDLCK : type == fs::LockType::kWrite ? F_WRLCK : F_UNLCK;
}

fs::client::FileLock ToLock(const fuse_file_info* info, const struct flock& wanted) {
  fs::client::FileLock lock{.owner = info->lock_owner, .type = TypeOf(wanted.l_type)};
  lock.start = static_cast<uint64_t>(wanted.l_start);
  lock.end = wanted.l_len == 0 ? fs::kLastLockByte : lock.start + static_cast<uint64_t>(wanted.l_len) - 1;
  lock.pid = static_cast<uint32_t>(wanted.l_pid);
  return lock;
}

void AnswerLock(fuse_req_t request, const fuse_file_info* info, const fs::client::FileLock& lock) {
  const Status done = [&] {
    ThreadSleeps sleep;
    return FrontEnd::Of(request).file_system().Lock(FrontEnd::lane(), FileOf(info), lock, &sleep);
  }();
  fuse_reply_err(request, done.code() == EBUSY ? EAGAIN : LoggedErrno(done));
}

}  // namespace

void OnSetLock(fuse_req_t request, fuse_ino_t, fuse_file_info* info, struct flock* wanted, int sleep) {
  fs::client::FileLock lock = ToLock(info, *wanted);
  lock.wait = sleep != 0;
  AnswerLock(request, info, lock);
}

void OnFlock(fuse_req_t request, fuse_ino_t, fuse_file_info* info, int operation) {
  const int what = operation & ~LOCK_NB;
  AnswerLock(request, info,
             {.flock = true,
              .type = what == LOCK_SH   ? fs::LockType::kRead
                      : what == LOCK_EX ? fs::LockType::kWrite
                                        : fs::LockType::kUnlock,
              .wait = (operation & LOCK_NB) == 0});
}

void OnGetLock(fuse_req_t request, fuse_ino_t, fuse_file_info* info, struct flock* wanted) {
  const auto held = [&] {
    ThreadSleeps sleep;
    return FrontEnd::Of(request).file_system().TestLock(FrontEnd::lane(), FileOf(info), ToLock(info, *wanted), &sleep);
  }();
  if (!held.ok()) {
    return Reply(request, held.status());
  }
  struct flock answer = *wanted;
  answer.l_type = F_UNLCK;
  if (held->has_value()) {
    const fs::client::FileLock& lock = **held;
    answer.l_type = NumberOf(lock.type);
    answer.l_start = static_cast<off_t>(lock.start);
    answer.l_len = lock.end == fs::kLastLockByte ? 0 : static_cast<off_t>(lock.end - lock.start + 1);
    answer.l_pid = static_cast<pid_t>(lock.pid);
  }
  fuse_reply_lock(request, &answer);
}

}  // namespace termfs::mount
