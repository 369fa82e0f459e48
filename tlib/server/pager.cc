// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/pager.h"

#include <array>
#include <cstring>

#include "tlib/server/page_runs.h"

namespace termfs::tlib::server {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kFaultTimeout{5000};
constexpr milliseconds kRetry{2};
constexpr uint32_t kFramesPerTurn = 64;  // evicted or moved before other tasks get their turn

}  // namespace

Pager::Pager(BlockDevice& device, Frames& frames, PageStates& states, FrameSupply& supply, TierPolicy& policy,
             Cleaner& cleaner, StorageMetrics& metrics, milliseconds shrink_timeout)
    : device_(device),
      frames_(frames),
      states_(states),
      supply_(supply),
      policy_(policy),
      cleaner_(cleaner),
      metrics_(metrics),
      shrink_timeout_(shrink_timeout),
      resize_([this] { return ResizeOnce(); }) {}

// ---------------------------------------------------------------------------------------------------------------
// Loading.

std::optional<driver::FrameIndex> Pager::TakeFrame(PageIndex page, Urgency urgency) {
  switch (urgency) {
    case Urgency::kIfWorthIt:
      return supply_.TakeForRead(page);
    case Urgency::kPassing:
      return supply_.TakeToPass(page);
    case Urgency::kAny:
      break;
  }
  return supply_.TakeAny(page);
}

// True when the page is loading, its frame to be filled by the caller.
bool Pager::BeginLoad(PageIndex page, Urgency urgency) {
  if (states_.Peek(page).state() != PageState::kAbsent) {
    return false;
  }
  const auto frame = TakeFrame(page, urgency);
  if (!frame.has_value()) {
    return false;
  }
  if (!states_.BeginLoad(page, *frame)) {
    supply_.Give(*frame);
    return false;
  }
  supply_.SetOwner(*frame, page);
  return true;
}

void Pager::EndLoad(PageIndex page, Urgency urgency, bool ok) {
  const driver::FrameIndex frame = states_.Peek(page).frame();
  if (!ok) {
    supply_.ClearOwner(frame);
  }
  states_.EndLoad(page, ok);
  if (ok) {
    (urgency == Urgency::kPassing ? metrics_.read_ahead_pages : metrics_.promotions).Add();
  } else {
    supply_.Give(frame);
  }
}

Result<uint32_t> Pager::Load(std::span<const PageIndex> pages, Urgency urgency) {
  PageRuns runs(BlockIo::Kind::kRead);
  std::array<PageIndex, PageRuns::kMaxPages> reading;
  uint32_t loaded = 0;
  for (const PageIndex page : pages) {
    if (!BeginLoad(page, urgency)) {
      continue;
    }
    const PageEntry entry = states_.Peek(page);  // nobody else changes a loading page
    std::byte* const bytes = frames_.data(entry.frame());
    if (entry.on_ssd()) {
      reading[runs.pages()] = page;
      runs.Add(page, bytes);
    } else {
      std::memset(bytes, 0, kPageSize);
      EndLoad(page, urgency, true);
      loaded++;
    }
  }
  if (!runs.empty()) {
    device_.Run(runs.ios());
    for (uint32_t i = 0; i < runs.pages(); i++) {
      const bool ok = runs.StatusOf(i).ok();
      EndLoad(reading[i], urgency, ok);
      loaded += ok ? 1 : 0;
    }
    RETURN_IF_ERROR(runs.FirstError().WithContext("load pages into the tier"));
  }
  return loaded;
}

void Pager::Admit(PageIndex page, const std::byte* bytes) {
  if (!BeginLoad(page, Urgency::kIfWorthIt)) {
    return;
  }
  std::memcpy(frames_.data(states_.Peek(page).frame()), bytes, kPageSize);
  EndLoad(page, Urgency::kIfWorthIt, true);
}

Status Pager::Fault(PageIndex page) {
  metrics_.faults.Add();
  const Clock::time_point deadline = Clock::now() + kFaultTimeout;
  while (true) {
    ASSIGN_OR_RETURN([[maybe_unused]] const uint32_t loaded, Load({&page, 1}, Urgency::kAny));
    const PageEntry entry = states_.AcquireExclusive(page, PageStates::WriteBack::kMayRun);
    if (entry.present()) {
      states_.PublishAgain(page);  // the fault may have come just after the page was published
    }
    states_.ReleaseExclusive(page);
    if (entry.present()) {
      return Status::Ok();
    }
    if (Clock::now() >= deadline) {
      return Status::Error(ETIMEDOUT, "no frame could be freed for a page fault");
    }
    cleaner_.Kick();
    Task::ParkUntil(Clock::now() + kRetry);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// The budget.

Status Pager::SetBudget(uint32_t frames) {
  wanted_.store(frames, std::memory_order_relaxed);
  return resize_.Run();
}

Status Pager::ResizeOnce() {
  const uint32_t old_limit = frames_.limit();
  policy_.SetBudget(wanted_.load(std::memory_order_relaxed));
  Status set = frames_.SetLimit(wanted_.load(std::memory_order_relaxed), [] { Task::Yield(); });
  const uint32_t limit = frames_.limit();
  policy_.SetBudget(limit);
  // Beyond the limit, as one before was higher. Victims are looked for there, too, until none is left; a growth does
  // not wait for that.
  const uint32_t taken_end = std::max(frames_.taken_end(), limit);
  supply_.SetHandRange(taken_end);
  if (!set.ok() || taken_end == limit || (limit > old_limit && old_limit > 0)) {
    return set;
  }
  RETURN_IF_ERROR(Shrink(taken_end, limit));
  supply_.SetHandRange(limit);
  return Status::Ok();
}

Status Pager::Shrink(uint32_t taken_end, uint32_t limit) {
  const Clock::time_point deadline = Clock::now() + shrink_timeout_;
  uint32_t futile = 0;
  for (uint32_t i = 0; frames_.used() > limit; i++) {  // the least worthy go
    if (supply_.EvictOne() || cleaner_.CleanBatch() || cleaner_.PauseAfterError()) {
      futile = 0;
    } else if (++futile >= taken_end) {  // it was not for the few frames that it looked at
      Task::ParkUntil(Clock::now() + kRetry);
      futile = 0;
    }
    if (Clock::now() >= deadline) {
      return Status::Error(ETIMEDOUT, "shrink the DRAM tier: pages cannot be evicted");
    }
    if (i % kFramesPerTurn == 0) {
      Task::Yield();
    }
  }
  for (uint32_t frame = limit; frame < taken_end; frame++) {  // the others move below the limit
    RETURN_IF_ERROR(EmptyFrame({frame}, deadline));
    if (frame % kFramesPerTurn == 0) {
      Task::Yield();
    }
  }
  return Status::Ok();
}

Status Pager::EmptyFrame(driver::FrameIndex frame, Clock::time_point deadline) {
  while (frames_.taken(frame)) {
    const std::optional<PageIndex> page = supply_.Owner(frame);
    if (page.has_value() && TryMove(*page, frame)) {
      return Status::Ok();
    }
    // No frame below the limit is free, or somebody has taken this one and not yet said for which page.
    if (frames_.free() > 0 || (!supply_.EvictOne() && !cleaner_.CleanBatch())) {
      Task::ParkUntil(Clock::now() + kRetry);
    }
    if (Clock::now() >= deadline) {
      return Status::Error(ETIMEDOUT, "shrink the DRAM tier: a frame cannot be emptied");
    }
  }
  return Status::Ok();
}

bool Pager::TryMove(PageIndex page, driver::FrameIndex from) {
  const std::optional<driver::FrameIndex> to = frames_.Take();
  if (!to.has_value()) {
    return false;
  }
  const PageEntry entry = states_.AcquireExclusive(page, PageStates::WriteBack::kMustEnd);
  const bool still_there = entry.present() && entry.frame() == from;
  if (still_there) {
    frames_.Copy(from, *to);
    supply_.SetOwner(*to, page);
    states_.Move(page, *to);
    supply_.ClearOwner(from);
  }
  states_.ReleaseExclusive(page);
  supply_.Give(still_there ? from : *to);
  return still_there;
}

}  // namespace termfs::tlib::server
