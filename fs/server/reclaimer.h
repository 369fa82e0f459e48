// SPDX-License-Identifier: Apache-2.0
//
// Reclaimer: the thread for what follows an operation later. It releases orphans that nobody has open, ends
// truncations, makes freed pages zero and free again, counts what is below a new quota, and writes times to the store
// within a second. A second thread syncs the store's log every second, whatever the first is at.
//
// Freed space: the operation that freed it has revoked all maps before (fs/server/coherence.h), so a pending range is
// named by nobody: once the freeing is durable, Zero it, then CommitFree. In bounded steps, so that nothing here takes
// long.
//
// Thread-safety: Add..., Note... and Kick from any thread; WaitForSpace inside a task.
// Ownership:     everything is borrowed. Stop before the server stops.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/failure_log.h"
#include "base/mutex.h"
#include "fs/server/clients.h"
#include "fs/server/inode_table.h"
#include "fs/server/replaced.h"
#include "fs/server/task_condition.h"
#include "metadata/namespace.h"
#include "tlib/server/server.h"

namespace termfs::fs::server {

class Reclaimer {
 public:
  // `freed` is called, on the thread, when an inode has lost blocks, and `pass` with each pass.
  Reclaimer(metadata::Namespace& names, InodeTable& inodes, Clients& clients, ReplacedInodes& replaced,
            std::function<void(uint64_t ino)> freed, std::function<void()> pass)
      : names_(names),
        inodes_(inodes),
        clients_(clients),
        replaced_(replaced),
        freed_(std::move(freed)),
        pass_(std::move(pass)) {}
  ~Reclaimer() { Stop(); }

  // Begins with the orphans and truncations that an earlier run left.
  void Start(tlib::server::Server& server);
  void Stop();
  // What can be done without a server: times and orphans. An error: the store lacks some of it. REQUIRES: stopped.
  Status Finish();

  // An orphan; released when nobody has it open (else its last closer adds it again), and nobody is expected back who
  // may have.
  void AddOrphan(uint64_t ino);
  // It has a name now.
  void ForgetOrphan(uint64_t ino);
  void AddTruncation(uint64_t ino);
  // It is cut within a page: some time later that page is flushed, and the cut forgotten.
  void NoteCut(uint64_t ino) EXCLUDES(mutex_);
  // The directory has a quota now, and what is below it is to be counted. `until` is let go when that has ended.
  void AddCount(uint64_t dir, std::shared_ptr<const void> until);
  // Why the last step of that failed, which is tried again; "": it did not.
  std::string CountFailure(uint64_t dir) EXCLUDES(mutex_);
  // A grace has begun (fs/server/replaced.h): the reclaimer sees to its end.
  void NoteGrace() EXCLUDES(mutex_);
  // There are pages to be made free.
  void NoteFreed();
  // Nobody has it open any more: trims what was allocated ahead, and writes its times.
  void AddClosed(uint64_t ino);
  // The inode's times have to be written to the store.
  void NoteDirty(uint64_t ino);
  // The same, if they still have to: who changes them while they are dirty does not say so again.
  void NoteIfDirty(Inode& inode);
  // The store has changed: its log is to be synced within a second.
  void NoteChange() { changed_.store(true, std::memory_order_relaxed); }
  void Kick();

  // Runs `work` on the reclaimer's thread, while it frees nothing that is pending, and waits for it. `work` takes no
  // long time, and needs nobody who may wait for space. ECANCELED: the reclaimer stops. Not from a task.
  Status Run(const std::function<Status()>& work) EXCLUDES(mutex_);

  // What was dirty when the server started, from the one before, is on the SSD; and since Unsettle, everything.
  bool settled() const { return settled_.load(std::memory_order_acquire); }

  // A flush has failed: what memory holds may not be what the SSD does, until it has been flushed again.
  void Unsettle() EXCLUDES(mutex_);

  // There are files without a name that are not open, whose space and quota a pass gives back; or replaced ones.
  bool HasOrphans() EXCLUDES(mutex_);
  // Returns when a pass that began after the call has freed what could be freed, or at the deadline. No grace lasts
  // longer than that.
  void WaitForSpace(Deadline deadline);

  // Writes the inode's times if they are dirty. REQUIRES: in its gate; where one may block.
  static Status WriteTimes(metadata::Namespace& names, Inode& inode);
  // At the last close: trims and writes times. REQUIRES: exclusive in its gate; where one may block. True: space freed.
  static Result<bool> CloseLast(metadata::Namespace& names, Inode& inode);

 private:
  void Loop();
  void DoWork() EXCLUDES(mutex_);
  // Flushes some of what settled() asks for. False: that was all, or it failed.
  bool SettleStep() EXCLUDES(mutex_);
  void Pass();
  void ReleaseOrphans();
  void EndGraces() EXCLUDES(mutex_);
  // False: not now. REQUIRES: exclusive in its gate.
  Result<bool> ReleaseOrphan(Inode& inode);
  void EndTruncations();
  void ListCuts();
  void SettleCuts() EXCLUDES(mutex_);
  // False: not now.
  Result<bool> SettleCut(uint64_t ino);
  void CountTrees() EXCLUDES(mutex_);
  void NoteCount(uint64_t dir, const Status& status) EXCLUDES(mutex_);
  Status CloseInodes();  // the first error; they are tried again
  void FreePending();
  Status Free(std::span<const metadata::RegionRange> pending);
  Status WriteDirtyTimes();  // as CloseInodes
  static Status WriteAccessTime(metadata::Namespace& names, Inode& inode);
  void SyncLogs() EXCLUDES(mutex_);
  void SyncLog();
  using Inodes = std::unordered_set<uint64_t>;
  Inodes Take(Inodes Reclaimer::*set) EXCLUDES(mutex_);
  void PassSoon() REQUIRES(mutex_);
  bool stopping() EXCLUDES(mutex_);

  metadata::Namespace& names_;
  InodeTable& inodes_;
  Clients& clients_;
  ReplacedInodes& replaced_;
  const std::function<void(uint64_t)> freed_;
  const std::function<void()> pass_;
  tlib::server::Server* server_ = nullptr;
  std::atomic<bool> changed_{false};
  std::atomic<bool> settled_{false};
  struct Count {
    metadata::Namespace::QuotaCount count;
    std::shared_ptr<const void> until;
  };
  // The thread's.
  PageIndex next_pending_;  // pending space is looked for from here on
  std::deque<Count> counts_;
  bool settle_fails_ = false;
  FailureLog failures_;

  Mutex mutex_;
  CondVar wake_;
  CondVar log_wake_;
  uint64_t settled_to_ GUARDED_BY(mutex_) = 0;  // pages
  bool stopping_ GUARDED_BY(mutex_) = false;
  bool kicked_ GUARDED_BY(mutex_) = false;
  // A pass is due then. More is waited for: a pass for each of many removals would cost more than the removals.
  std::optional<std::chrono::steady_clock::time_point> gathering_until_ GUARDED_BY(mutex_);
  std::optional<std::chrono::steady_clock::time_point> next_grace_ GUARDED_BY(mutex_);  // when graces are looked at
  bool needs_space_ GUARDED_BY(mutex_) = false;                                         // the next pass ends all graces
  Inodes orphans_ GUARDED_BY(mutex_);
  bool releasing_ GUARDED_BY(mutex_) = false;  // those that were in orphans_
  Inodes truncations_ GUARDED_BY(mutex_);
  struct Cut {
    uint64_t ino;
    std::chrono::steady_clock::time_point due;
  };
  std::deque<Cut> cuts_ GUARDED_BY(mutex_);
  Inodes in_cuts_ GUARDED_BY(mutex_);
  std::deque<Count> new_counts_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::string> count_failures_ GUARDED_BY(mutex_);
  Inodes closed_ GUARDED_BY(mutex_);
  Inodes dirty_ GUARDED_BY(mutex_);
  uint64_t passes_begun_ GUARDED_BY(mutex_) = 0;
  uint64_t passes_ended_ GUARDED_BY(mutex_) = 0;
  TaskCondition pass_ended_ GUARDED_BY(mutex_);
  struct Work {
    const std::function<Status()>* what;
    Status result;
    bool ended = false;
  };
  std::vector<Work*> work_ GUARDED_BY(mutex_);
  CondVar work_ended_;
  std::thread thread_;
  std::thread log_thread_;
};

}  // namespace termfs::fs::server
