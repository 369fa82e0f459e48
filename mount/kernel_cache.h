// SPDX-License-Identifier: Apache-2.0
//
// KernelCacheNotifier: tells the kernel of this mount what another client changed. Notifications wait for locks that
// the kernel holds during requests (a page's while it is read), so they are made on a thread of their own; the session
// that asks waits for the outcome, but not for ever: a request in flight may itself be waiting for this revocation.
//
// Thread-safety: any thread.
// Ownership:     the libfuse session outlives Attach to Detach.
// Errors:        logged; the kernel not knowing the inode is none.
#pragma once

#include <fuse_lowlevel.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <thread>

#include "base/mutex.h"
#include "fs/client/file_system.h"

namespace termfs::mount {

class KernelCacheNotifier : public fs::client::KernelCache {
 public:
  // How long InvalidateInode waits for the kernel. Far below the time that the server gives a client for an answer.
  static constexpr std::chrono::milliseconds kPatience{1000};

  KernelCacheNotifier();
  ~KernelCacheNotifier() override;

  // From now on there is a kernel to notify. What came before needs nothing: the kernel had cached nothing.
  void Attach(fuse_session* session) EXCLUDES(mutex_);
  // Nothing uses the session any more when this returns. The mount must still answer, or have been ended.
  void Detach() EXCLUDES(mutex_);

  void InvalidateInode(uint64_t ino, uint64_t offset, uint64_t length) override EXCLUDES(mutex_);
  // The kernel asks for every entry each time (entry timeout 0), so there is none to drop. It would take the
  // directory's lock, too, which a create in flight holds.
  void InvalidateEntry(uint64_t parent, std::string_view name) override;

 private:
  struct Notification {
    uint64_t ino;
    uint64_t offset;
    uint64_t length;
    uint64_t number;  // in the order of arrival, from 1
  };
  void Run() EXCLUDES(mutex_);
  static void Notify(fuse_session* session, const Notification& notification);

  Mutex mutex_;
  CondVar changed_;
  std::deque<Notification> queue_ GUARDED_BY(mutex_);
  uint64_t queued_ GUARDED_BY(mutex_) = 0;  // number of the last queued
  uint64_t done_ GUARDED_BY(mutex_) = 0;    // number of the last done
  bool busy_ GUARDED_BY(mutex_) = false;    // the thread is in the kernel
  bool ending_ GUARDED_BY(mutex_) = false;
  fuse_session* session_ GUARDED_BY(mutex_) = nullptr;
  std::thread thread_;
};

}  // namespace termfs::mount
