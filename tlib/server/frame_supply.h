// SPDX-License-Identifier: Apache-2.0
//
// FrameSupply: who gets a frame, and who gives one up for it. Ties the frame pool, the page states and the policy
// together. Nothing here waits or does I/O: where no frame is to be had at once, the caller goes without one (through a
// bounce buffer), so no read or write ever waits for an eviction.
//
// A reserve of free frames is kept for writes; the cleaner refills it ahead of need. Once the tier is full, writes to
// absent pages and what is read ahead share a passing queue of at most a sixteenth of the tier, first in first out, so
// that big sequential writes and reads pass through that and leave the hot set alone; what proves hot on its way
// graduates out of it. Long runs of whole pages may make it twice as long: a stream of them fills it as fast as it can,
// while what is at its other end is on its way to the SSD, and waits for the flush after that.
//
// Thread-safety: any thread.
// Ownership:     a frame handed out is the caller's until he calls SetOwner and completes the page's state, or Give.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/page.h"
#include "driver/nic.h"
#include "tlib/server/frames.h"
#include "tlib/server/page_states.h"
#include "tlib/server/sparse_array.h"
#include "tlib/server/storage_metrics.h"
#include "tlib/server/tier_policy.h"

namespace termfs::tlib::server {

class FrameSupply final : private TierView {
 public:
  // All outlive this.
  FrameSupply(Frames& frames, PageStates& states, TierPolicy& policy, StorageMetrics& metrics, uint32_t max_frames);
  FrameSupply(const FrameSupply&) = delete;
  FrameSupply& operator=(const FrameSupply&) = delete;

  // For a page that was or shall be read: a free frame beyond the reserve, or a victim's that it beats.
  std::optional<driver::FrameIndex> TakeForRead(PageIndex page);
  // For an absent page that is about to be written. `run`: how many full pages are written in one go.
  std::optional<driver::FrameIndex> TakeForWrite(PageIndex page, uint32_t run) EXCLUDES(mutex_);
  // For `count` absent pages from `first` on that are written whole, in one go; how many there were, for the first of
  // them, which have these owners. The others are written through together; a run that is too short for that gets none.
  uint32_t TakeForRun(PageIndex first, uint32_t count, std::span<driver::FrameIndex> frames) EXCLUDES(mutex_);
  // For an absent page that a sequential read is about to come to.
  std::optional<driver::FrameIndex> TakeToPass(PageIndex page) EXCLUDES(mutex_);
  // How many pages pass at a time, once the tier is full.
  size_t passing_capacity() const;
  // Enough pages have come to the passing queue that those ahead of them had better be cleaned. Once, until again.
  bool TakePassingDue();
  // At most `most` dirty pages of the passing queue, but for the younger half of its capacity, that are not worth to
  // stay: the next to go.
  std::vector<PageIndex> NextToPass(size_t most) EXCLUDES(mutex_);
  // Whether the page would be kept if somebody had to go now.
  bool Deserves(PageIndex page) const { return policy_.DeservesFrame(page); }
  // For who must have one: any free frame, or the least worthy victim's.
  std::optional<driver::FrameIndex> TakeAny(PageIndex page);
  void Give(driver::FrameIndex frame) { frames_.Give(frame); }

  // `page` is in `frame`; before the page's state says so. And: no page is any more; before Give.
  void SetOwner(driver::FrameIndex frame, PageIndex page);
  void ClearOwner(driver::FrameIndex frame);
  std::optional<PageIndex> Owner(driver::FrameIndex frame) const override;

  // Evicts until the reserve is full; false when there was nothing to evict.
  bool RefillReserve();
  bool ReserveLow() const { return frames_.free() < reserve() / 2; }
  uint32_t reserve() const;

  // Frames that victims are looked for in: more than the limit while the tier shrinks.
  void SetHandRange(uint32_t frames) { hand_range_.store(frames, std::memory_order_relaxed); }
  // Evicts one page, the least worthy; its frame goes back to the pool. False when there is none at once.
  bool EvictOne();

 private:
  static constexpr uint32_t kNobody = 0;
  struct Passing {
    driver::FrameIndex frame;
    PageIndex page;
  };

  bool Evictable(driver::FrameIndex frame, PageIndex page) const override;
  // At that page; none when it cannot be placed there.
  std::optional<driver::FrameIndex> Placed(std::optional<driver::FrameIndex> frame, PageIndex page);
  std::optional<driver::FrameIndex> TakeSome();
  std::optional<driver::FrameIndex> TakeWorthReading(PageIndex page);
  std::optional<driver::FrameIndex> Evict(std::optional<driver::FrameIndex> victim);
  std::optional<driver::FrameIndex> EvictLeastWorthy();
  std::optional<driver::FrameIndex> TakeFromPassing(PageIndex page, bool may_use_reserve) EXCLUDES(mutex_);
  // `capacity`: of the queue, for the taker.
  std::optional<driver::FrameIndex> TakeFromQueue(PageIndex page, size_t capacity, bool may_use_reserve)
      REQUIRES(mutex_);
  void Pass(driver::FrameIndex frame, PageIndex page) REQUIRES(mutex_);
  // False: none can leave the queue now. Who leaves it for good leaves its frame; who has proved hot keeps it.
  bool LeavePassing(std::optional<driver::FrameIndex>& frame) REQUIRES(mutex_);

  Frames& frames_;
  PageStates& states_;
  TierPolicy& policy_;
  StorageMetrics& metrics_;
  std::atomic<uint32_t> hand_range_{0};
  const SparseArray<std::atomic<uint32_t>> owners_;  // page + 1
  Mutex mutex_;
  std::deque<Passing> passing_ GUARDED_BY(mutex_);
  std::atomic<uint32_t> passed_{0};  // since the last TakePassingDue; stays within the queue's capacity or little above
};

}  // namespace termfs::tlib::server
