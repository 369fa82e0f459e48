// SPDX-License-Identifier: Apache-2.0
//
// KernelCacheNotifier: tells the kernel of this mount what another client changed. See "Leases for what the kernel
// caches" for why each kind of notification is enough.
//
//   pages       may wait for locks that the kernel holds during requests (a page's while it is read): on a thread of
//               their own; who asks waits for the outcome, but not for ever: a request in flight may itself be waiting
//               for this revocation.
//   attributes  wait for nothing: on the caller's thread.
//   sizes       before a reader's question for attributes is answered: see reader_sizes.h; smaller ones, as soon as
//               another client has cut a file off: size_refresher.h.
//   entries     take the lock of the directory, which the kernel holds during requests that change it: on a second
//               thread. Who asks waits until that is done, or until this mount is seen changing the directory itself:
//               then all entries of the mount are made void by a new epoch, which waits for nothing. But a kernel
//               unmounts what is mounted below a void entry. So while anything is, there are no new epochs: who asks
//               waits longer, or until the time of the entries is over, and no more are given. An entry that a rename
//               of this mount may have moved away is dropped wherever it went, by a new epoch, too.
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
#include "base/seldom.h"
#include "fs/client/file_system.h"
#include "mount/moved_names.h"
#include "mount/reader_sizes.h"
#include "mount/size_refresher.h"

namespace termfs::mount {

class KernelCacheNotifier : public fs::client::KernelCache {
 public:
  // How long InvalidateInode waits for the kernel. Far below the time that the server gives a client for an answer. For
  // one that the kernel does not come to an end with all who wait behind it wait so long in all.
  static constexpr std::chrono::milliseconds kPatience{1000};
  // How long InvalidateEntry waits for a directory's lock: who holds it may be waiting to be received by this mount.
  static constexpr std::chrono::milliseconds kEntryPatience{200};
  // The same where there must be no new epoch. Below the time that the server gives.
  static constexpr std::chrono::milliseconds kEntryPatienceAboveMounts{2000};
  // How much longer than it was told the kernel is thought to use an entry: it counts from when it gets the reply.
  static constexpr std::chrono::milliseconds kEntryMargin{1000};
  // When so much of this time was spent on notifications of entries of one directory, all entries are made void
  // instead.
  static constexpr std::chrono::milliseconds kCostly{5};
  static constexpr std::chrono::seconds kCostWindow{1};
  // But not more often: entries last no longer, so the kernel has to look up at most twice as many.
  static constexpr std::chrono::seconds kBetweenDrops{10};
  // Renames that are remembered; they matter for as long as an entry lasts.
  static constexpr size_t kMostMoves = 4096;
  // How long the kernel is thought to take from a reply to the inode that it makes of it.
  static constexpr std::chrono::milliseconds kMaking{100};

  KernelCacheNotifier();
  ~KernelCacheNotifier() override;

  // From now on there is a kernel to notify. What came before needs nothing: the kernel had cached nothing, as it is
  // served only from now on. Without a session no entries are given.
  // `mountpoint`: of the session, "" if there is none.
  void Attach(fuse_session* session, const std::string& mountpoint) EXCLUDES(mutex_);
  // Nothing uses the session any more when this returns. The mount must still answer, or have been ended.
  void Detach() EXCLUDES(mutex_);

  bool InvalidateInode(uint64_t ino, uint64_t offset, uint64_t length) override EXCLUDES(mutex_);
  void InvalidateAttributes(uint64_t ino, std::chrono::steady_clock::time_point recalled) override EXCLUDES(mutex_);
  void RefreshSize(uint64_t ino, uint64_t generation) override EXCLUDES(mutex_);
  [[nodiscard]] bool InvalidateEntry(uint64_t parent, std::string_view name) override EXCLUDES(mutex_);
  void ServerLost() override EXCLUDES(mutex_);
  [[nodiscard]] bool AboutToGive(uint64_t ino, uint64_t directory, Nanoseconds entry) override;

  ReaderSizes& sizes() { return sizes_; }
  // Before a read for the page cache is answered: when this returns the kernel goes by a size in between, or that
  // cannot be had. Waits for the kernel to ask, or to take over the answer to a change of its own: another thread is to
  // serve meanwhile. REQUIRES: sizes().MayDiffer.
  void AwaitSize(uint64_t ino, uint64_t generation, uint64_t least, uint64_t most) EXCLUDES(mutex_);
  // An OwnCut of the inode lives.
  bool IsCutting(uint64_t ino) EXCLUDES(mutex_);
  // As ReaderSizes says. Waits for a page that is being read: another thread is to serve meanwhile.
  void StoreSize(uint64_t ino, uint64_t size) EXCLUDES(mutex_);

  // Before the answer to a page that the kernel has written back: it does not number that change, so attributes of
  // before that were given to it lately, and that it has not looked at, are made void.
  void AfterWriteBack(uint64_t ino) EXCLUDES(mutex_);

  // The kernel understands epochs, so it may be given entries for longer than the moment.
  void HasEpochs() { epochs_.store(true, std::memory_order_relaxed); }

  // The kernel waits for a rename; when that succeeds, it moves the entry that it knew before it asked.
  void Moves(MovedNames::Name from, MovedNames::Name to, bool exchange) EXCLUDES(mutex_);

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

  // As long as it lives, the kernel waits for a request that changes the inode's size, and takes no other size but one
  // that is stored.
  class OwnCut {
   public:
    OwnCut(KernelCacheNotifier& cache, uint64_t ino);
    ~OwnCut();
    OwnCut(const OwnCut&) = delete;
    OwnCut& operator=(const OwnCut&) = delete;

    // Before the answer is sent that it has succeeded: what was asked before is not stored afterwards. MayWait: another
    // thread is to serve meanwhile, for it may wait for requests.
    bool MayWait() const { return cache_.sizes_.Knows(ino_); }
    void BeforeAnswer();

   private:
    KernelCacheNotifier& cache_;
    const uint64_t ino_;
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
    bool expires = false;  // it is looked up again, instead of dropped with what is mounted below it
  };
  // What a thread does in the order of arrival.
  template <typename Item>
  struct Line {
    std::deque<Item> items;
    uint64_t queued = 0;  // so many, ever
    uint64_t done = 0;
    // When the thread began with what it does now.
    std::chrono::steady_clock::time_point since = std::chrono::steady_clock::time_point::max();
  };
  // Waits until the kernel may be notified of the inode.
  void BeginNotification(uint64_t ino);

  // A call into the kernel, which Detach waits for. Null: there is no kernel to notify.
  class Use;

  template <typename Item>
  void Run(Line<Item> KernelCacheNotifier::*lines, const char* name,
           void (KernelCacheNotifier::*notify)(fuse_session*, const Item&)) EXCLUDES(mutex_);
  void NotifyPages(fuse_session* session, const Pages& pages);
  void NotifyEntry(fuse_session* session, const Entry& entry);
  int NotifyAttributes(fuse_session* session, uint64_t ino);
  // Makes all entries void, if that harms nothing.
  bool NewEpoch() EXCLUDES(mutex_);
  bool has_epochs() const { return epochs_.load(std::memory_order_relaxed); }
  bool IsChanging(uint64_t directory) const REQUIRES(mutex_);
  // Queues a notification, unless this mount itself is changing the directory, or the thread is held up by another one.
  // Whether it was carried out before the deadline.
  bool Notified(const Entry& entry, bool gives_up_early, std::chrono::steady_clock::time_point deadline)
      EXCLUDES(mutex_);
  // The name has been dropped: so is what the kernel had by that name before and has moved.
  bool DropMoved(uint64_t parent, std::string_view name, std::chrono::steady_clock::time_point deadline)
      EXCLUDES(mutex_);
  // Entries of the directory were given before it was voided only, so the kernel uses none.
  bool UsesNoneOf(uint64_t directory) EXCLUDES(mutex_);
  // A notification of an entry of the directory has been carried out, since `begin`. If they cost too much, makes all
  // entries void: of this directory nothing is under way to the kernel that was given before `begin`.
  void NoteNotified(uint64_t directory, std::chrono::steady_clock::time_point begin) EXCLUDES(mutex_);
  // Looks whether anything is mounted below this mount.
  bool HasMountsBelow() EXCLUDES(mutex_);
  // When the kernel uses no entry any more that it has been given so far.
  std::chrono::steady_clock::time_point EntriesEnd() const;

  std::atomic<bool> attached_{false};      // there is a session
  std::atomic<bool> epochs_{false};        // before requests that depend on it
  std::atomic<bool> mounts_below_{false};  // when it was last looked at, relaxed
  // When inodes with this remainder were last given to the kernel, and until when entries; nanoseconds of the steady
  // clock.
  std::array<std::atomic<int64_t>, 4096> given_{};
  std::atomic<int64_t> entries_until_{0};
  // When entries of directories with this remainder were last given, or moved there; and of directories not known.
  std::array<std::atomic<int64_t>, 1024> names_given_{};
  std::atomic<int64_t> any_name_given_{0};
  ReaderSizes sizes_;

  Mutex mutex_;
  CondVar changed_;
  Seldom goes_on_without_{std::chrono::seconds(10)};  // said in the log
  Line<Pages> pages_ GUARDED_BY(mutex_);
  Line<Entry> entries_ GUARDED_BY(mutex_);
  struct Directory {
    uint64_t ino = 0;
    std::chrono::steady_clock::time_point since{};  // of the first notification that counts
    std::chrono::steady_clock::duration waited{0};
    int64_t voided = 0;  // entries that were given before are void; nanoseconds of the steady clock
  };
  std::array<Directory, 64> directories_ GUARDED_BY(mutex_){};  // by remainder: the latest
  std::chrono::steady_clock::time_point drops_again_ GUARDED_BY(mutex_){};
  std::vector<uint64_t> changing_ GUARDED_BY(mutex_);  // directories, once for each request
  MovedNames moved_ GUARDED_BY(mutex_){kMostMoves};
  std::vector<uint64_t> cutting_ GUARDED_BY(mutex_);  // inodes, once for each request
  unsigned in_kernel_ GUARDED_BY(mutex_) = 0;         // calls
  bool ending_ GUARDED_BY(mutex_) = false;
  dev_t device_ GUARDED_BY(mutex_) = 0;  // of this mount; 0: not known
  fuse_session* session_ GUARDED_BY(mutex_) = nullptr;
  std::shared_ptr<SizeRefresher> refresher_ GUARDED_BY(mutex_);  // null: the mount's device is not known
  // For AwaitSize: the one above may be waiting for the page that is being read.
  std::shared_ptr<SizeRefresher> asker_ GUARDED_BY(mutex_);
  std::shared_ptr<SizeRefresher> looker_ GUARDED_BY(mutex_);
  std::thread pages_thread_;
  std::thread entries_thread_;
};

}  // namespace termfs::mount
