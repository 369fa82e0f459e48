// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/frame_supply.h"

#include <algorithm>

namespace termfs::tlib::server {
namespace {

constexpr uint32_t kReserveShare = 64;    // 1/64 of the tier is kept free
constexpr uint32_t kReserveMost = 1024;   // 4 MiB
constexpr uint32_t kPassingShare = 16;    // of the tier, for what is written or read once
constexpr uint32_t kMostPassing = 16384;  // 64 MiB
constexpr uint32_t kPassingTries = 16;    // of the oldest that pass, for one that is clean
constexpr uint32_t kLongRun = 16;         // pages
constexpr uint32_t kStreamShare = 2;      // times the passing queue's capacity, for long runs
constexpr uint32_t kRefillTries = 256;

}  // namespace

FrameSupply::FrameSupply(Frames& frames, PageStates& states, TierPolicy& policy, StorageMetrics& metrics,
                         uint32_t max_frames)
    : frames_(frames), states_(states), policy_(policy), metrics_(metrics), owners_(max_frames) {}

uint32_t FrameSupply::reserve() const {
  // kStatic gives nobody up, so it cannot keep frames free; and where every page has one nobody waits for one.
  return policy_.choice() == FrameChoice::kStatic || frames_.limit() >= states_.pages()
             ? 0
             : std::min(frames_.limit() / kReserveShare, kReserveMost);
}

size_t FrameSupply::passing_capacity() const {
  return std::clamp<size_t>(frames_.limit() / kPassingShare, 1, kMostPassing);
}

void FrameSupply::SetOwner(driver::FrameIndex frame, PageIndex page) {
  owners_[frame.value].store(static_cast<uint32_t>(page.value) + 1, std::memory_order_relaxed);
}

void FrameSupply::ClearOwner(driver::FrameIndex frame) {
  owners_[frame.value].store(kNobody, std::memory_order_relaxed);
}

std::optional<PageIndex> FrameSupply::Owner(driver::FrameIndex frame) const {
  const uint32_t page = owners_[frame.value].load(std::memory_order_relaxed);
  return page == kNobody ? std::nullopt : std::optional(PageIndex{page - 1});
}

bool FrameSupply::Evictable(driver::FrameIndex frame, PageIndex page) const {
  const PageEntry entry = states_.Peek(page);
  return entry.state() == PageState::kClean && entry.frame() == frame && !entry.held() && !entry.mark_pending() &&
         !entry.mark_committing();
}

std::optional<driver::FrameIndex> FrameSupply::Evict(std::optional<driver::FrameIndex> victim) {
  if (!victim.has_value()) {
    return std::nullopt;
  }
  const std::optional<PageIndex> page = Owner(*victim);
  if (!page.has_value() || !states_.TryEvict(*page, *victim)) {
    return std::nullopt;
  }
  ClearOwner(*victim);
  metrics_.evictions.Add();
  if (victim->value >= frames_.limit()) {  // the tier shrinks: retired, not reused
    frames_.Give(*victim);
    return std::nullopt;
  }
  return victim;
}

std::optional<driver::FrameIndex> FrameSupply::Placed(std::optional<driver::FrameIndex> frame, PageIndex page) {
  if (frame.has_value() && !frames_.Place(*frame, page)) {
    frames_.Give(*frame);
    return std::nullopt;
  }
  return frame;
}

std::optional<driver::FrameIndex> FrameSupply::TakeForRead(PageIndex page) {
  return Placed(TakeWorthReading(page), page);
}

std::optional<driver::FrameIndex> FrameSupply::TakeWorthReading(PageIndex page) {
  if (frames_.free() > reserve()) {
    if (const auto frame = frames_.Take(); frame.has_value()) {
      return frame;
    }
  }
  return Evict(policy_.VictimFor(page, *this, hand_range_.load(std::memory_order_relaxed)));
}

std::optional<driver::FrameIndex> FrameSupply::TakeForWrite(PageIndex page, uint32_t run) {
  if (states_.dirty() > uint64_t{frames_.limit()} * 15 / 16) {
    return std::nullopt;  // the SSD is behind: what more is written goes at its pace
  }
  if (frames_.free() > reserve()) {
    return Placed(frames_.Take(), page);
  }
  if (run >= kLongRun || policy_.choice() == FrameChoice::kStatic) {
    return std::nullopt;
  }
  return Placed(TakeFromPassing(page, /*may_use_reserve=*/true), page);
}

uint32_t FrameSupply::TakeForRun(PageIndex first, uint32_t count, std::span<driver::FrameIndex> frames) {
  if (count < kLongRun || states_.dirty() > uint64_t{frames_.limit()} * 15 / 16) {
    return 0;
  }
  uint32_t taken = 0;
  bool placed = true;
  const auto take = [&](std::optional<driver::FrameIndex> frame) {
    frame = Placed(frame, {first.value + taken});
    placed = frame.has_value();
    if (placed) {
      SetOwner(*frame, {first.value + taken});
      frames[taken++] = *frame;
    }
  };
  const size_t capacity = kStreamShare * passing_capacity();
  MutexLock lock(mutex_);
  while (!passing_.empty() && Owner(passing_.front().frame) != passing_.front().page) {
    passing_.pop_front();
  }
  while (placed && taken < count) {
    const PageIndex page{first.value + taken};
    if (frames_.free() <= reserve()) {
      if (policy_.choice() == FrameChoice::kStatic) {
        break;
      }
      take(TakeFromQueue(page, capacity, /*may_use_reserve=*/false));
      continue;
    }
    // The last that are free fill the queue, so that those at its end are clean when the first is needed.
    const bool passes = reserve() > 0 && frames_.free() + passing_.size() <= reserve() + capacity;
    const auto frame = frames_.Take();
    if (frame.has_value() && passes) {
      Pass(*frame, page);
    }
    take(frame);
  }
  return taken;
}

std::optional<driver::FrameIndex> FrameSupply::TakeToPass(PageIndex page) {
  if (frames_.free() > reserve() || policy_.choice() != FrameChoice::kHeat) {
    return TakeForRead(page);
  }
  return Placed(TakeFromPassing(page, /*may_use_reserve=*/false), page);
}

std::optional<driver::FrameIndex> FrameSupply::TakeFromPassing(PageIndex page, bool may_use_reserve) {
  MutexLock lock(mutex_);
  if (passing_.size() > passing_capacity()) {  // a stream has been there
    std::optional<driver::FrameIndex> spare;
    LeavePassing(spare);
    if (spare.has_value()) {
      frames_.Give(*spare);
    }
  }
  return TakeFromQueue(page, passing_capacity(), may_use_reserve);
}

std::optional<driver::FrameIndex> FrameSupply::TakeFromQueue(PageIndex page, size_t capacity, bool may_use_reserve) {
  std::optional<driver::FrameIndex> frame;
  if (passing_.size() >= capacity && !LeavePassing(frame)) {
    return std::nullopt;
  }
  if (!frame.has_value()) {
    frame = may_use_reserve ? TakeSome() : EvictLeastWorthy();
  }
  if (frame.has_value()) {
    Pass(*frame, page);
  }
  return frame;
}

void FrameSupply::Pass(driver::FrameIndex frame, PageIndex page) {
  passing_.push_back({frame, page});
  passed_.fetch_add(1, std::memory_order_relaxed);
}

bool FrameSupply::LeavePassing(std::optional<driver::FrameIndex>& frame) {
  const size_t tries = std::min<size_t>(kPassingTries, passing_.size());
  for (size_t i = 0; i < tries; ++i) {
    const Passing candidate = passing_[i];
    const bool stays = Owner(candidate.frame) != candidate.page || policy_.DeservesFrame(candidate.page);
    if (!stays) {
      frame = Evict(candidate.frame);
    }
    if (stays || frame.has_value()) {
      passing_[i] = passing_.front();
      passing_.pop_front();
      return true;
    }
  }
  return false;
}

bool FrameSupply::TakePassingDue() {
  if (passed_.load(std::memory_order_relaxed) < passing_capacity() / 4) {
    return false;
  }
  passed_.store(0, std::memory_order_relaxed);
  return true;
}

std::vector<PageIndex> FrameSupply::NextToPass(size_t most) {
  std::vector<PageIndex> pages;
  MutexLock lock(mutex_);
  const size_t younger = std::min((passing_.size() + 1) / 2, passing_capacity() / 2);
  for (size_t i = 0; i + younger < passing_.size() && pages.size() < most; ++i) {
    const Passing& next = passing_[i];
    const PageEntry entry = states_.Peek(next.page);
    if (entry.state() == PageState::kDirty && entry.frame() == next.frame && !policy_.DeservesFrame(next.page)) {
      pages.push_back(next.page);
    }
  }
  return pages;
}

std::optional<driver::FrameIndex> FrameSupply::TakeAny(PageIndex page) { return Placed(TakeSome(), page); }

std::optional<driver::FrameIndex> FrameSupply::TakeSome() {
  if (const auto frame = frames_.Take(); frame.has_value()) {
    return frame;
  }
  return EvictLeastWorthy();
}

std::optional<driver::FrameIndex> FrameSupply::EvictLeastWorthy() {
  return Evict(policy_.LeastWorthy(*this, hand_range_.load(std::memory_order_relaxed)));
}

bool FrameSupply::EvictOne() {
  const std::optional<driver::FrameIndex> victim =
      policy_.LeastWorthy(*this, hand_range_.load(std::memory_order_relaxed));
  if (!victim.has_value()) {
    return false;
  }
  if (const auto frame = Evict(victim); frame.has_value()) {
    frames_.Give(*frame);
  }
  return true;
}

bool FrameSupply::RefillReserve() {
  for (uint32_t i = 0; i < kRefillTries && frames_.free() < reserve(); i++) {
    if (!EvictOne()) {
      return false;
    }
  }
  return true;
}

}  // namespace termfs::tlib::server
