// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/tier_policy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

namespace termfs::tlib::server {
namespace {

constexpr double kHalfLife = 48;  // accesses per page of the region
// When something has shifted, what was counted before counts so much less at once, and no more than one access: enough
// for what is missed twice to take its place, too little for one scan to.
constexpr double kOnceShifted = 0.0625;
constexpr float kMostOnceShifted = 1;
constexpr uint32_t kSample = 16;    // frames that are looked at for a victim
constexpr int kSecondChances = 64;  // frames that may be passed over
// How many deviations hotter a page must be to replace another: half of one where heats differ anyhow, since a wrong
// exchange of two pages about as hot costs next to nothing; three where they look like chance (by HeatMap::Dispersion).
constexpr float kDeviationsSkewed = 0.5F;
constexpr float kDeviationsEven = 3.0F;
constexpr float kDeviationsToLoad = 1.0F;  // than the tier's coldest, at least, where that costs a read of the SSD
constexpr double kSkewed = 3.0;
constexpr double kEven = 1.5;
// Misses that tell of a shift: so many times the usual ones, and so many of a read more; and more than chance explains.
constexpr double kShiftedTimes = 1.5;
constexpr double kShiftedMore = 0.005;
constexpr double kShiftedDeviations = 4;
// How far usual misses follow those of a telling. Not at once, or whoever reads for a moment what is in memory makes
// all that comes after it look like a shift.
constexpr double kUsualFalls = 0.25;
constexpr double kUsualRises = 0.1;
constexpr uint32_t kMostTold = 1U << 26;  // pages of one client in a period; more is nonsense
constexpr uint64_t kEnoughReads = 256;    // in a period, to tell anything from their hit ratio

float DeviationsFor(double dispersion) {
  const double share = std::clamp((dispersion - kEven) / (kSkewed - kEven), 0.0, 1.0);
  return static_cast<float>(kDeviationsEven + share * (kDeviationsSkewed - kDeviationsEven));
}

// `hotter` exceeds `colder` by more than the scatter of two counts.
bool ClearlyHotter(float hotter, float colder, float deviations) {
  const float more = hotter - colder;
  return more > 0 && more * more > deviations * deviations * (hotter + colder);
}

}  // namespace

TierPolicy::TierPolicy(uint64_t pages, uint64_t max_pages, FrameChoice choice)
    : heat_(pages, max_pages), choice_(choice), referenced_(max_pages / 64 + 1) {}

void TierPolicy::Access(PageIndex page, uint32_t accesses, AccessKind kind) {
  std::atomic<uint64_t>& counter = kind == AccessKind::kHit ? hits_ : kind == AccessKind::kMiss ? misses_ : writes_;
  counter.fetch_add(accesses, std::memory_order_relaxed);
  heat_.Add(page, accesses);
  if (choice() == FrameChoice::kRecent) {
    const uint64_t bit = uint64_t{1} << (page.value % 64);
    std::atomic<uint64_t>& word = referenced_[page.value / 64];
    if ((word.load(std::memory_order_relaxed) & bit) == 0) {
      word.fetch_or(bit, std::memory_order_relaxed);
    }
  }
}

void TierPolicy::AddTotals(uint64_t client, uint32_t hits, uint32_t misses) {
  MutexLock lock(told_mutex_);
  Tell(told_[client], std::min(hits, kMostTold), std::min(misses, kMostTold));
}

void TierPolicy::Tell(Told& told, uint64_t hits, uint64_t misses) {
  told.hits = hits;
  told.misses = misses;
  told.periods = 0;
  const auto reads = static_cast<double>(told.reads());
  const bool judged = told.usual >= 0 && settling_ == 0;
  told.expected_misses = judged ? told.usual * reads : static_cast<double>(misses);
  if (told.reads() >= kEnoughReads) {
    const double more = static_cast<double>(misses) / reads - told.usual;
    told.usual += judged ? (more < 0 ? kUsualFalls : kUsualRises) * more : more;
  }
}

TierPolicy::Told TierPolicy::SumTold() {
  Told sum;
  for (auto told = told_.begin(); told != told_.end();) {
    if (told->second.periods++ >= told_periods_.load(std::memory_order_relaxed)) {
      told = told_.erase(told);
      continue;
    }
    sum.hits += told->second.hits;
    sum.misses += told->second.misses;
    sum.expected_misses += told->second.expected_misses;
    ++told;
  }
  return sum;
}

// Once a period, so that what clients report together counts alike; and within bounds, or what was counted in a long
// period would hardly weigh more than what comes by chance in the next.
void TierPolicy::Age(uint64_t accesses) {
  const double half_lives = static_cast<double>(accesses) / (kHalfLife * static_cast<double>(heat_.pages()));
  heat_.Age(std::exp2(-std::min(half_lives, 1.0)));
}

std::optional<TierPolicy::Candidate> TierPolicy::FindColdest(const TierView& tier, uint32_t frames) {
  // Heats, and still more the states of pages, are far apart in memory: all heats on their way at once, and states only
  // of those who may be it.
  std::array<Candidate, kSample> candidates;
  size_t count = 0;
  const uint32_t first = hand_.fetch_add(kSample, std::memory_order_relaxed);
  for (uint32_t i = 0; i < kSample; i++) {
    const driver::FrameIndex frame{(first + i) % frames};
    if (const std::optional<PageIndex> page = tier.Owner(frame); page.has_value()) {
      heat_.Prefetch(*page);
      candidates[count++] = {frame, *page};
    }
  }
  std::optional<Candidate> coldest;
  float lowest = 0;
  for (const Candidate& candidate : std::span(candidates).first(count)) {
    const float heat = heat_.Heat(candidate.page);
    if ((!coldest.has_value() || heat < lowest) && tier.Evictable(candidate.frame, candidate.page)) {
      coldest = candidate;
      lowest = heat;
    }
  }
  return coldest;
}

bool TierPolicy::TakeReferenced(PageIndex page) {
  const uint64_t bit = uint64_t{1} << (page.value % 64);
  std::atomic<uint64_t>& word = referenced_[page.value / 64];
  return (word.load(std::memory_order_relaxed) & bit) != 0 &&
         (word.fetch_and(~bit, std::memory_order_relaxed) & bit) != 0;
}

std::optional<TierPolicy::Candidate> TierPolicy::FindNotRecent(const TierView& tier, uint32_t frames) {
  std::optional<Candidate> passed_over;
  for (int i = 0; i < kSecondChances; i++) {
    const driver::FrameIndex frame{hand_.fetch_add(1, std::memory_order_relaxed) % frames};
    const std::optional<PageIndex> page = tier.Owner(frame);
    if (!page.has_value() || !tier.Evictable(frame, *page)) {
      continue;
    }
    if (!TakeReferenced(*page)) {
      return Candidate{frame, *page};
    }
    if (!passed_over.has_value()) {
      passed_over = {frame, *page};
    }
  }
  return passed_over;
}

std::optional<driver::FrameIndex> TierPolicy::VictimFor(PageIndex candidate, const TierView& tier, uint32_t frames) {
  if (frames == 0) {
    return std::nullopt;
  }
  switch (choice()) {
    case FrameChoice::kHeat: {
      const std::optional<Candidate> coldest = FindColdest(tier, frames);
      if (!coldest.has_value() || !ClearlyHotter(heat_.Heat(candidate), heat_.Heat(coldest->page),
                                                 deviations_.load(std::memory_order_relaxed))) {
        return std::nullopt;
      }
      return coldest->frame;
    }
    case FrameChoice::kRecent: {
      const std::optional<Candidate> victim = FindNotRecent(tier, frames);
      return victim.has_value() ? std::optional(victim->frame) : std::nullopt;
    }
    case FrameChoice::kStatic:
      break;
  }
  return std::nullopt;
}

std::optional<driver::FrameIndex> TierPolicy::LeastWorthy(const TierView& tier, uint32_t frames) {
  if (frames == 0) {
    return std::nullopt;
  }
  const std::optional<Candidate> victim =
      choice() == FrameChoice::kRecent ? FindNotRecent(tier, frames) : FindColdest(tier, frames);
  return victim.has_value() ? std::optional(victim->frame) : std::nullopt;
}

bool TierPolicy::DeservesFrame(PageIndex page) const {
  const float deviations = std::max(kDeviationsToLoad, deviations_.load(std::memory_order_relaxed));
  return choice() == FrameChoice::kHeat &&
         ClearlyHotter(heat_.Heat(page), threshold_.load(std::memory_order_relaxed), deviations);
}

void TierPolicy::EndPeriod() {
  threshold_.store(heat_.Threshold(budget_.load(std::memory_order_relaxed)), std::memory_order_relaxed);
  deviations_.store(DeviationsFor(heat_.Dispersion()), std::memory_order_relaxed);
  const uint64_t hits = hits_.exchange(0, std::memory_order_relaxed);
  const uint64_t misses = misses_.exchange(0, std::memory_order_relaxed);
  Age(hits + misses + writes_.exchange(0, std::memory_order_relaxed));
  if (JudgeMisses(hits, misses)) {
    heat_.Forget(kOnceShifted, kMostOnceShifted);
  }
}

bool TierPolicy::JudgeMisses(uint64_t hits, uint64_t misses) {
  MutexLock lock(told_mutex_);
  settling_ -= std::min(settling_, 1U);
  // Each client tells twice in that time: what its first telling is of may lie on both sides of a shift.
  const uint32_t to_settle = told_periods_.load(std::memory_order_relaxed) / 2;
  if (const uint32_t budget = budget_.load(std::memory_order_relaxed); budget != judged_budget_) {
    judged_budget_ = budget;  // a smaller tier misses more, and nothing has shifted
    settling_ = to_settle;
  }
  Told sum = SumTold();
  if (sum.reads() >= kEnoughReads) {
    own_.usual = -1;  // it says other things of the same tier
  } else {
    Tell(own_, hits, misses);
    sum = own_;
  }
  if (sum.reads() < kEnoughReads) {
    return false;
  }
  const auto reads = static_cast<double>(sum.reads());
  const auto missed = static_cast<double>(sum.misses);
  hit_ratio_.store(1 - missed / reads, std::memory_order_relaxed);
  const bool shifted = settling_ == 0 && missed > kShiftedTimes * sum.expected_misses + kShiftedMore * reads &&
                       missed - sum.expected_misses > kShiftedDeviations * std::sqrt(sum.expected_misses + 1);
  if (shifted) {
    settling_ = to_settle;
  }
  return shifted;
}

}  // namespace termfs::tlib::server
