// SPDX-License-Identifier: Apache-2.0
//
// Cleaner: brings dirty pages to the SSD, on demand (Flush) and ahead of need, and makes what was written durable: the
// commit flushes the device, then marks the pages that are new on the SSD in the written log, then syncs that.
//
//   frame --WriteBack--> SSD --device flush--> durable bytes --log sync--> durable mark --> the frame may be given back
//
// Thread-safety: tasks of any workers; NoteDirty, NotePendingMark and Kick from any thread.
// Errors:        a failed write-back leaves its page dirty, a failed commit leaves marks pending: both are tried again
//                later, and Flush reports what concerned its own pages.
// Durability:    when Flush returned ok, everything written to its ranges before it was called survives power loss.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/page.h"
#include "base/result.h"
#include "tlib/server/background_task.h"
#include "tlib/server/block_device.h"
#include "tlib/server/frame_supply.h"
#include "tlib/server/group_commit.h"
#include "tlib/server/page_states.h"
#include "tlib/server/storage_metrics.h"
#include "tlib/server/written_log.h"

namespace termfs::tlib::server {

class Cleaner {
 public:
  Cleaner(BlockDevice& device, WrittenLog& log, Frames& frames, PageStates& states, FrameSupply& supply,
          StorageMetrics& metrics);
  Cleaner(const Cleaner&) = delete;
  Cleaner& operator=(const Cleaner&) = delete;

  void Start(const Spawner& spawn) {
    background_.Start(spawn);
    passing_.Start(spawn);
    committer_.Start(spawn);
  }
  void Stop() {
    background_.Stop();
    passing_.Stop();
    committer_.Stop();
  }
  void Kick() { background_.Kick(); }

  // A page became dirty and is not in the queue; a page is new on the SSD; something was written to the SSD.
  void NoteDirty(PageIndex page) EXCLUDES(mutex_) { NoteDirty({&page, 1}); }
  void NoteDirty(std::span<const PageIndex> pages) EXCLUDES(mutex_);
  void NotePendingMark(PageIndex page) EXCLUDES(mutex_);
  void NoteSsdWrite() { ssd_writes_.fetch_add(1, std::memory_order_release); }

  Status Flush(std::span<const PageRange> ranges);
  // The device is flushed and all that had reached the SSD is marked.
  Status Commit() { return commit_.Run(); }
  // Of the device. What had been written to it before may be lost, however the next one ends.
  uint64_t failed_flushes() const { return failed_flushes_.load(std::memory_order_acquire); }
  enum class Which {
    kOldest,  // of what is dirty
    kOld,     // what has been dirty for long
    kCold,    // the oldest of what does not deserve its frame
  };
  // Writes back one batch of the queue, and commits. False when there was none, or that failed.
  bool CleanBatch(Which which = Which::kOldest);
  // Waits for a while when the device refused the last time, so that nobody asks it without end. False: it did not.
  bool PauseAfterError();

 private:
  using Clock = std::chrono::steady_clock;
  struct Queued {
    PageIndex page;
    Clock::time_point since;
  };

  std::chrono::milliseconds Round();
  // Marks what was written back, while the next pages are on their way to the SSD.
  std::chrono::milliseconds CommitRound();
  // True: there are so many that a commit is due.
  bool AddPendingMark(PageIndex page) EXCLUDES(mutex_);
  void CleanDownTo(uint64_t dirty, Which which);
  void NoteOutcome(const Status& status);
  // What is about to leave the passing queue.
  std::chrono::milliseconds PassingRound();
  enum class ThenCommit { kAlways, kIfMarksArePending, kLater };
  // False: there are none, or an error.
  bool CleanPages(std::span<const PageIndex> pages, ThenCommit commit);
  // They leave the queue of dirty pages.
  std::vector<PageIndex> Take(Which which) EXCLUDES(mutex_);
  void TakeOldest(bool only_old, std::vector<PageIndex>& pages) REQUIRES(mutex_);
  void TakeCold(std::vector<PageIndex>& pages) REQUIRES(mutex_);
  bool HasPendingMarks() EXCLUDES(mutex_);
  // Writes back those of `pages` (ascending) that are dirty and not held exclusively, and adds the others to `skipped`.
  // The first error.
  Status WriteBack(std::span<const PageIndex> pages, std::vector<PageIndex>& skipped);
  // All at once. REQUIRES: no more than `runs`, empty, can hold.
  template <typename Runs>
  Status WriteBackTogether(std::span<const PageIndex> pages, Runs& runs, std::vector<PageIndex>& skipped);
  // Of one range: what is dirty now is written back by us, or by others before this returns.
  Status WriteBackRange(PageRange range);
  Status WriteBackBusy(PageIndex page);
  Status CommitOnce() EXCLUDES(mutex_);
  Status MarkAll(std::span<const PageIndex> pages);

  BlockDevice& device_;
  WrittenLog& log_;
  Frames& frames_;
  PageStates& states_;
  FrameSupply& supply_;
  StorageMetrics& metrics_;
  GroupCommit commit_;
  BackgroundTask background_;
  // A stream of writes does not wait until the round above, or a flush, has ended.
  BackgroundTask passing_;
  BackgroundTask committer_;
  // Counts writes that have ended on the SSD; release in NoteSsdWrite pairs with acquire in CommitOnce. One more than
  // were flushed, to begin with: those of a process that was killed may be in the device's cache only.
  std::atomic<uint64_t> ssd_writes_{1};
  std::atomic<bool> failing_{false};  // the last write-back or commit that nobody was told of
  std::atomic<uint64_t> failed_flushes_{0};
  uint64_t flushed_writes_ = 0;  // CommitOnce only
  Mutex mutex_;
  std::deque<Queued> dirty_ GUARDED_BY(mutex_);  // oldest first
  size_t hand_ GUARDED_BY(mutex_) = 0;           // where TakeCold goes on
  std::atomic<uint64_t> kick_at_{0};             // more dirty pages than these wake the cleaner
  std::vector<PageIndex> pending_marks_ GUARDED_BY(mutex_);
};

}  // namespace termfs::tlib::server
