// SPDX-License-Identifier: Apache-2.0
//
// TierPolicy: which pages deserve the DRAM tier. It sees accesses and answers two questions: which frame to give up,
// and whether a given page is worth it. It does no I/O and knows no page states.
//
//   kHeat    by HeatMap. The victim is the coldest of a few frames under a hand that goes round. A page
//            replaces it only if its heat is higher by more than chance explains: counts scatter by their square root,
//            so under uniform access nothing moves, and a scan, which touches each page once, replaces nothing that
//            was touched twice.
//   kRecent  second chance: a page accessed since the hand last came by is passed over once; everybody is admitted.
//   kStatic  nobody is admitted and nobody is given up.
//
// Ageing (kHeat) is by accesses, not by time: heats halve every kHalfLife accesses per page of the region. When clearly
// more reads miss than usual, each client's by its own measure, something has shifted: heats shrink to a sixteenth at
// once, so that what is hot from then on soon takes over. What misses then is usual, and nothing is judged, until all
// clients have told twice; likewise after a change of the budget.
//
// Thread-safety: any thread; EndPeriod one caller at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "base/mutex.h"
#include "base/page.h"
#include "driver/nic.h"
#include "tlib/server/heat_map.h"
#include "tlib/server/server.h"
#include "tlib/server/sparse_array.h"

namespace termfs::tlib::server {

// What the policy sees of the tier.
class TierView {
 public:
  virtual ~TierView() = default;
  // The page in `frame`, if any: a guess.
  virtual std::optional<PageIndex> Owner(driver::FrameIndex frame) const = 0;
  // Whether `frame`, with `page` in it, could be given up at once (clean, nobody uses it).
  virtual bool Evictable(driver::FrameIndex frame, PageIndex page) const = 0;
};

enum class AccessKind : uint8_t {
  kHit,    // a read of a page that was in a frame
  kMiss,   // a read of one that was not
  kWrite,  // counts for the heat, not for the hit ratio
};

class TierPolicy {
 public:
  // `max_pages`: what Resize may go to.
  TierPolicy(uint64_t pages, uint64_t max_pages, FrameChoice choice);
  TierPolicy(uint64_t pages, FrameChoice choice) : TierPolicy(pages, pages, choice) {}

  FrameChoice choice() const { return choice_.load(std::memory_order_relaxed); }
  void SetChoice(FrameChoice choice) { choice_.store(choice, std::memory_order_relaxed); }
  void Resize(uint64_t pages) { heat_.Resize(pages); }
  void SetBudget(uint32_t frames) { budget_.store(frames, std::memory_order_relaxed); }

  void Access(PageIndex page, uint32_t accesses, AccessKind kind);
  // Access(page, ...) is to come.
  void Prefetch(PageIndex page) const { heat_.Prefetch(page); }
  // As Region's. A client counts its hits and its misses of the same time; what comes by Access are the misses as they
  // happen, and the hits when they are told, up to some periods later. So the hit ratio is the clients', where any
  // tell: of what each said last, as no period of theirs is one of ours.
  void AddTotals(uint64_t client, uint32_t hits, uint32_t misses) EXCLUDES(told_mutex_);
  // What a client says holds for so many periods (5); then it has gone, or reads no more.
  void SetToldPeriods(uint32_t periods) { told_periods_.store(periods, std::memory_order_relaxed); }

  // A frame of [0, frames) to give up for `candidate`, when it is worth it.
  std::optional<driver::FrameIndex> VictimFor(PageIndex candidate, const TierView& tier, uint32_t frames);
  // The least worthy of a few, for whoever must have a frame (to refill the reserve, or to shrink).
  std::optional<driver::FrameIndex> LeastWorthy(const TierView& tier, uint32_t frames);
  // Whether the page is among the hottest that fit the budget, clearly.
  bool DeservesFrame(PageIndex page) const;

  // Every sample period: takes the hit ratio into account and finds the threshold anew.
  void EndPeriod() EXCLUDES(told_mutex_);
  // Of a page, in accesses.
  float heat(PageIndex page) const { return heat_.Heat(page); }
  // Of the last period that had accesses.
  double hit_ratio() const { return hit_ratio_.load(std::memory_order_relaxed); }

 private:
  // Reads of the same time: of one client, or of several.
  struct Told {
    uint64_t hits = 0;
    uint64_t misses = 0;
    double expected_misses = 0;  // by what is usual
    double usual = -1;           // misses of a read; negative: not known
    uint32_t periods = 0;        // ended since
    uint64_t reads() const { return hits + misses; }
  };
  struct Candidate {
    driver::FrameIndex frame;
    PageIndex page;
  };

  std::optional<Candidate> FindColdest(const TierView& tier, uint32_t frames);
  std::optional<Candidate> FindNotRecent(const TierView& tier, uint32_t frames);
  bool TakeReferenced(PageIndex page);
  void Age(uint64_t accesses);
  void Tell(Told& told, uint64_t hits, uint64_t misses) REQUIRES(told_mutex_);
  Told SumTold() REQUIRES(told_mutex_);
  // Whether something has shifted, by what is told; by the server's own `hits` and `misses` where too little is.
  bool JudgeMisses(uint64_t hits, uint64_t misses) EXCLUDES(told_mutex_);

  HeatMap heat_;
  std::atomic<FrameChoice> choice_;
  std::atomic<uint32_t> budget_{0};
  std::atomic<uint32_t> hand_{0};
  const SparseArray<std::atomic<uint64_t>> referenced_;  // a bit per page
  std::atomic<float> threshold_{0};
  std::atomic<float> deviations_{3};
  std::atomic<uint64_t> hits_{0};
  std::atomic<uint64_t> misses_{0};
  std::atomic<uint64_t> writes_{0};
  std::atomic<uint32_t> told_periods_{5};
  Mutex told_mutex_;
  std::unordered_map<uint64_t, Told> told_ GUARDED_BY(told_mutex_);  // by client
  Told own_ GUARDED_BY(told_mutex_);                                 // as if a client had told what the server saw
  uint32_t judged_budget_ GUARDED_BY(told_mutex_) = 0;
  uint32_t settling_ GUARDED_BY(told_mutex_) = 0;  // periods until misses are judged again
  std::atomic<double> hit_ratio_{0};
};

}  // namespace termfs::tlib::server
