// SPDX-License-Identifier: Apache-2.0
//
// KernelCacheNotifier: tells the kernel of this mount what another client changed. See "Leases for what the kernel
// caches" for why each kind of notification is enough.
//
//   pages       may wait for locks that the kernel holds during requests (a page's while it is read): on a thread of
//               their own; who asks waits for the outcome, but not for ever: a request in flight may itself be waiting
//               for this revocation.
//   attributes  wait for nothing: on the caller's thread.
//   entries     take the lock of the directory, which the kernel holds during requests that change it: on a second
//               thread. Who asks waits until that is done, or until this mount is seen changing the directory itself:
//               then all entries of the mount are made void by a new epoch, which waits for nothing.
//
// Thread-safety: any thread.
// Ownership:     the libfuse session outlives Attach to Detach.
// Errors:        logged; the kernel not knowing the inode or the name is none.
#pragma once

#include <fuse_lowlevel.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "fs/client/file_system.h"

namespace termfs::mount {

class KernelCacheNotifier : public fs::client::KernelCache {
 public:
  // How long InvalidateInode waits for the kernel. Far below the time that the server gives a client for an answer.
  static constexpr std::chrono::milliseconds kPatience{1000};
  // How long InvalidateEntry waits for a directory's lock: who holds it may be waiting to be received by this mount.
  static constexpr std::chrono::milliseconds kEntryPatience{200};
  // How long the kernel is thought to take from a reply to the inode that it makes of it.
  static constexpr std::chrono::milliseconds kMaking{100};

  KernelCacheNotifier();
  ~KernelCacheNotifier() override;

  // From now on there is a kernel to notify. What came before needs nothing: the kernel had cached nothing.
  void Attach(fuse_session* session) EXCLUDES(mutex_);
  // Nothing uses the session any more when this returns. The mount must still answer, or have been ended.
  void Detach() EXCLUDES(mutex_);

  void InvalidateInode(uint64_t ino, uint64_t offset, uint64_t length) override EXCLUDES(mutex_);
  void InvalidateAttributes(uint64_t ino) override EXCLUDES(mutex_);
  void InvalidateEntry(uint64_t parent, std::string_view name) override EXCLUDES(mutex_);
  void ServerLost() override EXCLUDES(mutex_);

  // The kernel understands epochs, so it may be given entries for longer than the moment.
  void HasEpochs() { epochs_.store(true, std::memory_order_relaxed); }
  bool has_epochs() const { return epochs_.load(std::memory_order_relaxed); }
  // The kernel is about to be given an inode that it may not know yet, and its attributes to keep.
  void NoteGiven(uint64_t ino);

  // As long as it lives, the kernel waits for a request that changes the directory.
  class Change {
   public:
    Change(KernelCacheNotifier& cache, uint64_t directory);
    ~Change();
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    KernelCacheNotifier& cache_;
    const uint64_t directory_;
  };

 private:
  struct Pages {
    uint64_t ino;
    uint64_t offset;
    uint64_t length;
  };
  struct Entry {
    uint64_t parent;
    std::string name;
  };
  // What a thread does in the order of arrival.
  template <typename Item>
  struct Line {
    std::deque<Item> items;
    uint64_t queued = 0;  // so many, ever
    uint64_t done = 0;
  };
  // A call into the kernel, which Detach waits for. Null: there is no kernel to notify.
  class Use;

  template <typename Item>
  void Run(Line<Item>& line, const char* name, void (*notify)(fuse_session*, const Item&)) EXCLUDES(mutex_);
  static void NotifyPages(fuse_session* session, const Pages& pages);
  static void NotifyEntry(fuse_session* session, const Entry& entry);
  static int NotifyAttributes(fuse_session* session, uint64_t ino);
  static void NewEpoch(fuse_session* session);
  bool IsChanging(uint64_t directory) const REQUIRES(mutex_);
  bool GivenLately(uint64_t ino) const;
  std::atomic<int64_t>& given(uint64_t ino) { return given_[ino % given_.size()]; }

  std::atomic<bool> epochs_{false};  // before requests that depend on it
  // When inodes with this remainder were last given to the kernel; nanoseconds of the steady clock.
  std::array<std::atomic<int64_t>, 4096> given_{};

  Mutex mutex_;
  CondVar changed_;
  Line<Pages> pages_ GUARDED_BY(mutex_);
  Line<Entry> entries_ GUARDED_BY(mutex_);
  std::vector<uint64_t> changing_ GUARDED_BY(mutex_);  // directories, once for each request
  unsigned in_kernel_ GUARDED_BY(mutex_) = 0;          // calls
  bool ending_ GUARDED_BY(mutex_) = false;
  fuse_session* session_ GUARDED_BY(mutex_) = nullptr;
  std::thread pages_thread_;
  std::thread entries_thread_;
};

}  // namespace termfs::mount
