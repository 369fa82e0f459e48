// SPDX-License-Identifier: Apache-2.0
#include "mount/kernel_cache.h"

#include <pthread.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "base/log.h"

namespace termfs::mount {
namespace {

constexpr std::chrono::seconds kIdle{10};  // the waits are in loops; this only bounds one

}  // namespace

KernelCacheNotifier::KernelCacheNotifier() : thread_([this] { Run(); }) {}

KernelCacheNotifier::~KernelCacheNotifier() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void KernelCacheNotifier::Attach(fuse_session* session) {
  MutexLock lock(mutex_);
  session_ = session;
}

void KernelCacheNotifier::Detach() {
  MutexLock lock(mutex_);
  session_ = nullptr;
  while (busy_) {  // ends with the request that it waits for, which has a deadline
    changed_.WaitFor(mutex_, kIdle);
  }
}

void KernelCacheNotifier::InvalidateInode(uint64_t ino, uint64_t offset, uint64_t length) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  MutexLock lock(mutex_);
  if (session_ == nullptr) {
    return;
  }
  const uint64_t number = ++queued_;
  queue_.push_back({ino, offset, length, number});
  changed_.NotifyAll();
  while (done_ < number) {
    if (!changed_.WaitUntil(mutex_, deadline) && done_ < number) {
      LOG_WARNING("the kernel has not yet dropped its pages of inode {}; going on without", ino);
      return;  // stays queued
    }
  }
}

void KernelCacheNotifier::InvalidateEntry(uint64_t, std::string_view) {}

void KernelCacheNotifier::Run() {
  pthread_setname_np(pthread_self(), "termfs-notify");
  while (true) {
    Notification next{};
    fuse_session* session = nullptr;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !ending_) {
        changed_.WaitFor(mutex_, kIdle);
      }
      if (queue_.empty()) {
        return;
      }
      next = queue_.front();
      queue_.pop_front();
      session = session_;
      busy_ = session != nullptr;
    }
    if (session != nullptr) {
      Notify(session, next);
    }
    MutexLock lock(mutex_);
    busy_ = false;
    done_ = next.number;
    changed_.NotifyAll();
  }
}

void KernelCacheNotifier::Notify(fuse_session* session, const Notification& notification) {
  constexpr uint64_t kLast = std::numeric_limits<int64_t>::max();
  const uint64_t offset = std::min(notification.offset, kLast);
  const uint64_t length = std::min(notification.length, kLast - offset);  // 0: to the end, as in the kernel
  const int error = fuse_lowlevel_notify_inval_inode(session, notification.ino, static_cast<off_t>(offset),
                                                     static_cast<off_t>(length));
  if (error != 0 && error != -ENOENT && error != -ENODEV && error != -ENOTCONN) {
    LOG_WARNING("the kernel did not drop its pages of inode {}: {}", notification.ino, std::strerror(-error));
  }
}

}  // namespace termfs::mount
