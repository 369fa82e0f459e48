// SPDX-License-Identifier: Apache-2.0
//
// PageStates: the state of every page of a region, and who may touch it now. Every access to a page's bytes, on the SSD
// or in its frame, happens under a hold or in a transitional state that is taken here.
//
//                                        Install (write, exclusive)
//                  ┌───────────────────────────────────────────────────────────┐
//                  │                                                           ▼       BeginWriteBack
//   ┌────────┐ BeginLoad ┌─────────┐ EndLoad ok ┌───────┐ MarkDirty         ┌───────┐ ─────────────► ┌──────────────┐
//   │ absent │ ────────► │ loading │ ─────────► │ clean │ ────────────────► │ dirty │                │ writing back │
//   └────────┘ ◄──────── └─────────┘            └───────┘ ◄── EndWriteBack ok, from writing back ──  └──────────────┘
//     ▲ ▲      EndLoad failed                     │                           ▲  ▲                       │ MarkDirty
//     │ └──────────── TryEvict ───────────────────┘      EndWriteBack failed  │  │ EndWriteBack          ▼
//     │                                                  ─────────────────────┘  └───────────── writing back, redirtied
//     └──── Drop (Zero, exclusive): from clean and dirty
//
// Holds. Shared: any number, to read the frame, or the SSD into memory of one's own. Exclusive: one, to change the
// page. Invariants:
//  1. An exclusive hold excludes shared ones and the beginning of loads, write-backs and evictions. It may coexist with
//     a write-back that had begun (the writer makes the page redirtied) unless its taker asked to have it ended first.
//  2. A present page is published in the RNIC page table with its frame, except that its exclusive holder may have it
//  as
//     `writing`. An absent or loading page is the magic page. Publish and Hide of a page are called under its stripe's
//     mutex or by its exclusive holder.
//  3. Clean and on_ssd: the frame equals the SSD. Clean and not on_ssd: the frame is all zeros.
//  4. A held page is not evicted, and a page whose mark is pending is not evicted: its frame is not given back before
//     the written log says durably that the SSD has it.
//  5. mark_pending or mark_committing imply on_ssd and not marked; marked implies on_ssd.
//  6. Who holds several pages took them in ascending order, and waits for nothing but device I/O and further (higher)
//     pages while he does. Whoever holds no page may wait for anything. So holds cannot deadlock.
//
// Thread-safety: tasks of any workers; what does not wait, any thread. Stripes of short mutexes guard the entries;
// tasks
//                that wait are queued beside the array, in their stripe.
// Ownership:     a hold belongs to the task that took it, which releases it.
// Errors:        none; a violated REQUIRES aborts.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/page.h"
#include "base/result.h"
#include "driver/nic.h"
#include "tlib/server/page_entry.h"
#include "tlib/server/task.h"

namespace termfs::tlib::server {

class PageStates {
 public:
  enum class WriteBack : uint8_t { kMayRun, kMustEnd };  // what an exclusive hold tolerates

  // Publishes and hides pages in `term`. `cells`, a word per page, zeros at first, may outlive the process and is then
  // given to Resume. Both outlive this.
  // A region of `pages` (all of them, where it is not said) that may grow to as many as there are cells.
  PageStates(driver::TermRegion& term, std::span<std::atomic<uint64_t>> cells, uint64_t pages);
  PageStates(driver::TermRegion& term, std::span<std::atomic<uint64_t>> cells)
      : PageStates(term, cells, cells.size()) {}
  PageStates(const PageStates&) = delete;
  PageStates& operator=(const PageStates&) = delete;

  uint64_t pages() const { return pages_.load(std::memory_order_acquire); }
  // The cells beyond the end stay, for who looked at pages() before; nobody takes a page beyond it from now on.
  void Resize(uint64_t pages);
  // A guess, without a lock: true now, maybe not any more when it returns.
  PageEntry Peek(PageIndex page) const { return PageEntry(Cell(page).load(std::memory_order_relaxed)); }

  // --- At opening, before anything else. The page's bytes are on the SSD and marked.
  void SetMarkedAtOpen(PageIndex page);
  // Or: what an earlier server left of the page, with half-done work undone (tier_recovery.h). `logged`: whether it is
  // marked. The page is to be published or hidden, and to be queued where the entry says so. An entry that no server
  // stored comes back as present in a frame that does not exist.
  PageEntry Resume(PageIndex page, bool logged);

  // --- Holds. The entry returned is the page's as of the beginning of the hold.
  PageEntry AcquireShared(PageIndex page);
  void ReleaseShared(PageIndex page);
  PageEntry AcquireExclusive(PageIndex page, WriteBack write_back);
  void ReleaseExclusive(PageIndex page);

  // --- By the exclusive holder.
  // A present page is about to change. True when it has to be queued as dirty.
  bool MarkDirty(PageIndex page);
  // An absent page gets `frame`, complete with the bytes that are newer than the SSD, and is published. As MarkDirty.
  bool Install(PageIndex page, driver::FrameIndex frame);
  // Acquires, installs and releases, when the page is absent, neither held nor wanted, and `check` (may be null),
  // which is asked under the stripe's mutex, returns ok.
  struct Installed {
    bool done = false;
    bool queue = false;  // as MarkDirty
    Status checked;
  };
  Installed TryInstall(PageIndex page, driver::FrameIndex frame, const std::function<Status()>& check);
  // As Install after the page was loaded by the holder himself and not changed: clean.
  void InstallClean(PageIndex page, driver::FrameIndex frame);
  // The page reads as zeros: hidden, absent, not on the SSD, no marks. Returns the frame it had.
  // REQUIRES: taken with kMustEnd.
  std::optional<driver::FrameIndex> Drop(PageIndex page);
  // A present page moves to `frame`, which holds a copy of its bytes, and is published. Returns the frame it had.
  // REQUIRES: taken with kMustEnd.
  driver::FrameIndex Move(PageIndex page, driver::FrameIndex frame);
  // A present page is published once more.
  void PublishAgain(PageIndex page);
  // The whole of an absent page was written to the SSD. True when its mark became pending.
  bool MarkOnSsd(PageIndex page);

  // --- Loading. Begin: false when the page is not absent or held exclusively. End: publishes the page, or makes it
  // absent again when `ok` is false. Shared holds may exist meanwhile: they read the SSD.
  bool BeginLoad(PageIndex page, driver::FrameIndex frame);
  void EndLoad(PageIndex page, bool ok);

  // --- Write-back. Begin: the frame to write when the page is dirty and not held exclusively.
  std::optional<driver::FrameIndex> BeginWriteBack(PageIndex page);
  struct WriteBackEnd {
    bool mark_pending = false;  // to be marked with the next commit
    bool queue = false;         // dirty again or still: to be queued
  };
  // `on_pending` is called when the mark becomes pending, under the stripe's mutex and before anybody can see the page
  // clean: a flush that finds it so commits next, and needs it among the pages to be marked.
  WriteBackEnd EndWriteBack(PageIndex page, bool ok, const std::function<void()>& on_pending = {});
  // Waits until the page is neither being written back nor held exclusively; what it is then.
  PageEntry AwaitQuiet(PageIndex page);
  // The cleaner took the page out of its queue; and: it could not write it back, true when it has to queue it again.
  void SetUnqueued(PageIndex page);
  bool RequeueIfDirty(PageIndex page);

  // Makes a clean page that nobody holds absent; its frame is then the caller's. False when that cannot be now, or the
  // page is in another frame.
  bool TryEvict(PageIndex page, driver::FrameIndex frame);

  // --- Written marks, by the commit. Begin: true when the mark was pending; it is committing then. WhileCommitting
  // calls `action` under the stripe's mutex if it still is (Drop may have come between). End: marked, or pending again
  // when `ok` is false; true when the page is still concerned.
  bool BeginMark(PageIndex page);
  void WhileCommitting(PageIndex page, const std::function<void()>& action);
  bool EndMark(PageIndex page, bool ok);

  // Pages with a frame, and pages whose frame is newer than the SSD.
  uint64_t present() const { return present_.load(std::memory_order_relaxed); }
  uint64_t dirty() const { return dirty_.load(std::memory_order_relaxed); }

 private:
  struct Waiter {
    PageIndex page;
    Task* task;
    Waiter* next;
    bool queued;
  };
  struct alignas(64) Stripe {
    Mutex mutex;
    Waiter* waiters = nullptr;  // guarded by mutex
  };
  static constexpr uint64_t kStripes = 1024;

  std::atomic<uint64_t>& Cell(PageIndex page) const;
  Stripe& StripeOf(PageIndex page) const { return stripes_[page.value % kStripes]; }
  // The rest: under the stripe's mutex.
  PageEntry Load(PageIndex page) const { return PageEntry(Cell(page).load(std::memory_order_relaxed)); }
  // Release: when the process dies here, what this state says of the frame's bytes is true already. (A mutex alone
  // would let later stores of its section overtake.)
  void Store(PageIndex page, PageEntry entry) { Cell(page).store(entry.bits(), std::memory_order_release); }
  void ChangeState(PageEntry& entry, PageState state);
  void WakeAll(Stripe& stripe, PageIndex page, PageEntry& entry) REQUIRES(stripe.mutex);
  // Queues the current task, gives the mutex up until it was woken, takes it again.
  void Wait(Stripe& stripe, PageIndex page) REQUIRES(stripe.mutex);
  bool QueueDirty(PageEntry& entry);

  driver::TermRegion& term_;
  const std::span<std::atomic<uint64_t>> cells_;
  std::atomic<uint64_t> pages_;
  const std::unique_ptr<Stripe[]> stripes_;
  std::atomic<uint64_t> present_{0};
  std::atomic<uint64_t> dirty_{0};
};

}  // namespace termfs::tlib::server
