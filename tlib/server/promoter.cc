// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/promoter.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "tlib/server/page_runs.h"

namespace termfs::tlib::server {
namespace {

constexpr uint64_t kSweptPerSecond = 65536;  // pages
constexpr uint64_t kSweepPagesPerTurn = 4096;
constexpr uint64_t kLoadedPerSecond = 8192;   // pages at most: 32 MiB
constexpr size_t kCountsAhead = 8;            // heats are far apart in memory: on their way before they are counted
constexpr uint32_t kMostAccesses = 1U << 20;  // of one page in one report; more is nonsense or counts as much

// Of what may be done in a second. A longer period is worth a second.
uint64_t InPeriod(uint64_t per_second, std::chrono::milliseconds period) {
  return std::max<uint64_t>(1, per_second * static_cast<uint64_t>(std::clamp<int64_t>(period.count(), 0, 1000)) / 1000);
}

}  // namespace

Promoter::Promoter(TierPolicy& policy, PageStates& states, Pager& pager, std::chrono::milliseconds period)
    : policy_(policy),
      states_(states),
      pager_(pager),
      period_(period),
      sweep_pages_(InPeriod(kSweptPerSecond, period)),
      most_loads_(InPeriod(kLoadedPerSecond, period)),
      background_([this] { return Round(); }) {}

void Promoter::AddCounts(std::span<const HeatEntry> counts) {
  std::vector<PageIndex> absent;
  const uint64_t pages = states_.pages();
  for (size_t i = 0; i < counts.size(); i++) {
    if (i + kCountsAhead < counts.size() && counts[i + kCountsAhead].page < pages) {
      policy_.Prefetch({counts[i + kCountsAhead].page});
    }
    const HeatEntry& entry = counts[i];
    const PageIndex page{entry.page};
    if (page.value >= pages) {
      continue;
    }
    policy_.Access(page, std::min(entry.accesses, kMostAccesses), AccessKind::kHit);
    if (!states_.Peek(page).present() && policy_.DeservesFrame(page) && absent.size() < most_loads_) {
      absent.push_back(page);  // was in a frame when it was counted, and lost it since
    }
  }
  MutexLock lock(mutex_);
  if (counted_absent_.size() < most_loads_) {
    counted_absent_.insert(counted_absent_.end(), absent.begin(), absent.end());
  }
}

void Promoter::Sweep(std::vector<PageIndex>& worthy) {
  for (uint64_t i = 0; i < std::min(sweep_pages_, states_.pages()) && worthy.size() < most_loads_; i++) {
    const PageIndex page{cursor_};
    cursor_ = (cursor_ + 1) % states_.pages();
    if (states_.Peek(page).state() == PageState::kAbsent && policy_.DeservesFrame(page)) {
      worthy.push_back(page);
    }
    if (i % kSweepPagesPerTurn == kSweepPagesPerTurn - 1) {
      Task::Yield();
    }
  }
}

void Promoter::LoadAll(std::span<const PageIndex> pages) {
  Status failed;
  bool some = false;
  for (size_t at = 0; at < pages.size() && !background_.stopping(); at += PageRuns::kMaxPages) {
    const size_t count = std::min<size_t>(PageRuns::kMaxPages, pages.size() - at);
    const auto loaded = pager_.Load(pages.subspan(at, count), Pager::Urgency::kIfWorthIt);
    if (failed.ok()) {
      failed = loaded.status();  // the other pages are worth their frames all the same
    }
    some |= loaded.ok() && *loaded > 0;
    Task::Yield();
  }
  if (some || !failed.ok()) {
    NoteOutcome(failed);
  }
}

// One line when the device begins to refuse, one when it has recovered.
void Promoter::NoteOutcome(const Status& status) {
  if (std::exchange(failing_, !status.ok()) == status.ok()) {
    if (status.ok()) {
      LOG_WARNING("promoter: hot pages are being loaded again");
    } else {
      LOG_ERROR("promoter: hot pages stay on the SSD, tried again every {} ms: {}", period_.count(), status.ToString());
    }
  }
}

std::chrono::milliseconds Promoter::Round() {
  policy_.EndPeriod();
  if (policy_.choice() == FrameChoice::kHeat) {
    std::vector<PageIndex> worthy;
    {
      MutexLock lock(mutex_);
      worthy.swap(counted_absent_);
    }
    Sweep(worthy);
    std::sort(worthy.begin(), worthy.end());
    worthy.erase(std::unique(worthy.begin(), worthy.end()), worthy.end());
    LoadAll(worthy);
  }
  return period_;
}

}  // namespace termfs::tlib::server
