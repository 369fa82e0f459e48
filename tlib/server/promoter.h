// SPDX-License-Identifier: Apache-2.0
//
// Promoter: every sample period it lets the policy take stock, then loads absent pages that deserve a frame and did not
// get one when they were missed: those that were turned away for want of a victim, and what a sweep over the region
// comes upon. Most promotions do not pass here: a miss that is worth a frame gets it at once, its bytes being read.
//
// It loads a window at a time and lets the foreground run in between, so it takes part of the SSD, never all of it; and
// only pages that beat the tier's victims clearly, so a load is paid back.
//
// Thread-safety: AddCounts from any thread; Start, Stop as BackgroundTask's.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/page.h"
#include "base/result.h"
#include "tlib/rpc/heat.h"
#include "tlib/server/background_task.h"
#include "tlib/server/pager.h"
#include "tlib/server/tier_policy.h"

namespace termfs::tlib::server {

class Promoter {
 public:
  Promoter(TierPolicy& policy, PageStates& states, Pager& pager, std::chrono::milliseconds period);
  Promoter(const Promoter&) = delete;
  Promoter& operator=(const Promoter&) = delete;

  void Start(const Spawner& spawn) { background_.Start(spawn); }
  void Stop() { background_.Stop(); }
  // A round at once: the budget or the choice has changed.
  void Kick() { background_.Kick(); }

  // As Region's.
  void AddCounts(std::span<const HeatEntry> counts) EXCLUDES(mutex_);

 private:
  std::chrono::milliseconds Round();
  void Sweep(std::vector<PageIndex>& worthy);
  void LoadAll(std::span<const PageIndex> pages);
  void NoteOutcome(const Status& status);

  TierPolicy& policy_;
  PageStates& states_;
  Pager& pager_;
  const std::chrono::milliseconds period_;
  const uint64_t sweep_pages_;  // in a period
  const uint64_t most_loads_;   // in a period
  BackgroundTask background_;
  uint64_t cursor_ = 0;   // of the sweep
  bool failing_ = false;  // the last round that loaded anything; rounds only
  Mutex mutex_;
  std::vector<PageIndex> counted_absent_ GUARDED_BY(mutex_);
};

}  // namespace termfs::tlib::server
