// SPDX-License-Identifier: Apache-2.0
#include "metadata/allocator.h"

#include <algorithm>

#include "metadata/keys.h"
#include "metadata/records.h"

namespace termfs::metadata {
namespace {

constexpr uint64_t kMostPending = 2 * kGroupPages;  // in one record

}  // namespace

uint32_t PagesInGroup(uint64_t capacity, uint64_t group) {
  const uint64_t start = group * kGroupPages;
  return start >= capacity ? 0 : static_cast<uint32_t>(std::min(kGroupPages, capacity - start));
}

Result<GroupBitmap> DecodeGroup(uint64_t capacity, uint64_t group, const std::optional<std::string>& value) {
  const uint32_t pages = PagesInGroup(capacity, group);
  return value ? GroupBitmap::Decode(pages, *value) : GroupBitmap(pages);
}

Status Allocator::Load(Reader& reader) {
  MutexLock lock(mutex_);
  groups_.resize(GroupCount(capacity_));
  for (size_t stream = 0; stream < kStreams; ++stream) {
    stream_groups_[stream] = stream * groups_.size() / kStreams;
  }
  for (uint64_t group = 0; group < groups_.size(); ++group) {
    ASSIGN_OR_RETURN(const auto value, reader.Get(GroupKey(server_, group)));
    ASSIGN_OR_RETURN(const GroupBitmap bitmap, DecodeGroup(capacity_, group, value));
    groups_[group] = {bitmap.CountFree(), bitmap.LongestFree(), 0};
    free_ += groups_[group].free;
  }
  int64_t pending = 0;
  RETURN_IF_ERROR(ForEach(reader, PendingKey(server_, {}), EndOfType('P'), [&](const KeyValue& pair) -> Status {
    ASSIGN_OR_RETURN(const uint64_t pages, DecodeNumber(pair.value));
    pending += static_cast<int64_t>(pages);
    return Status::Ok();
  }));
  uint64_t inodes = 0;  // wraps around: what a shard or a receipt adds may be below zero
  RETURN_IF_ERROR(ForEach(reader, InodeCountKey(0), EndOfType('C'), [&](const KeyValue& pair) -> Status {
    ASSIGN_OR_RETURN(const uint64_t count, DecodeNumber(pair.value));
    inodes += count;
    return Status::Ok();
  }));
  RETURN_IF_ERROR(ForEach(reader, ReceiptKey(0, 0), EndOfType('Q'), [&](const KeyValue& pair) -> Status {
    if (const Result<Receipt> receipt = DecodeReceipt(pair.value); receipt.ok()) {  // else fsck says so
      inodes += static_cast<uint64_t>(receipt->inodes);
    }
    return Status::Ok();
  }));
  pending_ = pending;
  inodes_ = static_cast<int64_t>(inodes);
  return Status::Ok();
}

SpaceUse Allocator::use() const {
  const auto count = [](int64_t n) { return static_cast<uint64_t>(std::max<int64_t>(n, 0)); };
  MutexLock lock(mutex_);
  return {capacity_, count(free_ - free_beyond_), count(pending_), count(inodes_)};
}

uint64_t Allocator::capacity() const {
  MutexLock lock(mutex_);
  return capacity_;
}

void Allocator::Grow(uint64_t capacity) {
  MutexLock lock(mutex_);
  if (capacity <= capacity_) {
    return;
  }
  groups_.resize(GroupCount(capacity));
  for (uint64_t group = capacity_ / kGroupPages; group < groups_.size(); ++group) {
    const uint32_t added = PagesInGroup(capacity, group) - PagesInGroup(capacity_, group);
    groups_[group].free += added;
    groups_[group].longest = std::max(groups_[group].longest, added);
  }
  free_ += static_cast<int64_t>(capacity - capacity_);
  capacity_ = end_ = capacity;
}

void Allocator::Cut(uint64_t capacity) {
  MutexLock lock(mutex_);
  groups_.resize(GroupCount(capacity));
  if (capacity % kGroupPages != 0) {
    groups_.back().free -= PagesInGroup(capacity_, groups_.size() - 1) - PagesInGroup(capacity, groups_.size() - 1);
  }
  for (uint64_t& group : stream_groups_) {
    group = std::min<uint64_t>(group, groups_.size() - 1);
  }
  free_ -= static_cast<int64_t>(capacity_ - capacity);
  free_beyond_ = 0;
  capacity_ = end_ = capacity;
}

void Allocator::Confine(uint64_t end) {
  MutexLock lock(mutex_);
  // Hints that were of less than the group: where to look is found out again.
  for (uint64_t group = std::min(end, end_) / kGroupPages; group < groups_.size(); ++group) {
    groups_[group].longest = PagesInGroup(end, group);
    groups_[group].next = 0;
  }
  end_ = end;
  free_beyond_ = 0;
}

uint64_t Allocator::end() const {
  MutexLock lock(mutex_);
  return end_;
}

void Allocator::SetFreeBeyond(uint64_t pages) {
  MutexLock lock(mutex_);
  free_beyond_ = static_cast<int64_t>(pages);
}

uint64_t Allocator::taken_beyond() const {
  MutexLock lock(mutex_);
  return static_cast<uint64_t>(std::max<int64_t>(static_cast<int64_t>(capacity_ - end_) - free_beyond_, 0));
}

void Allocator::AddInodes(int64_t delta) {
  MutexLock lock(mutex_);
  inodes_ += delta;
}

std::optional<uint64_t> Allocator::Choose(size_t stream, uint64_t want, const std::set<uint64_t>& exhausted) const {
  const uint64_t whole = std::min(want, kGroupPages);
  MutexLock lock(mutex_);
  std::optional<uint64_t> best;
  const uint64_t count = GroupCount(end_);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t group = (stream_groups_[stream] + i) % count;
    if (groups_[group].free <= 0 || exhausted.contains(group)) {
      continue;
    }
    if (groups_[group].longest >= whole) {
      return group;
    }
    if (!best || groups_[group].longest > groups_[*best].longest) {
      best = group;
    }
  }
  return best;
}

uint32_t Allocator::NextIn(uint64_t group) const {
  MutexLock lock(mutex_);
  return groups_[group].next;
}

void Allocator::Publish(const std::map<uint64_t, Effect>& effects, int64_t pending, std::optional<size_t> stream) {
  MutexLock lock(mutex_);
  for (const auto& [group, effect] : effects) {
    free_ -= effect.taken;
    free_beyond_ += end_ < capacity_ ? effect.freed_beyond : 0;
    if (group >= groups_.size()) {
      continue;  // the region has been cut since the commit
    }
    groups_[group].free -= effect.taken;
    groups_[group].longest = effect.longest;
    if (effect.taken > 0) {
      groups_[group].next = effect.next;
      if (stream) {
        stream_groups_[*stream] = group;
      }
    }
  }
  pending_ += pending;
}

Result<GroupBitmap*> SpaceChange::Open(uint64_t group) {
  const auto it = groups_.find(group);
  if (it != groups_.end()) {
    return &it->second;
  }
  ASSIGN_OR_RETURN(const auto value, transaction_.GetForUpdate(GroupKey(allocator_.server(), group)));
  ASSIGN_OR_RETURN(const GroupBitmap bitmap, DecodeGroup(end_, group, value));
  return &groups_.emplace(group, bitmap).first->second;
}

RegionRange SpaceChange::Mark(uint64_t group, GroupBitmap& bitmap, PageRun run) {
  bitmap.Take(run);
  Allocator::Effect& effect = effects_[group];
  effect.taken += run.pages;
  effect.next = run.first + run.pages;
  taken_end_ = std::max(taken_end_, group * kGroupPages + effect.next);
  return {allocator_.server(), {group * kGroupPages + run.first}, run.pages};
}

Result<RegionRange> SpaceChange::TakeOne(size_t stream, uint64_t pages, std::optional<PageIndex> goal) {
  const auto want = static_cast<uint32_t>(std::min(pages, kGroupPages));
  if (goal && goal->value < end_) {
    const uint64_t group = GroupOf(*goal);
    const auto first = static_cast<uint32_t>(goal->value % kGroupPages);
    ASSIGN_OR_RETURN(GroupBitmap* const bitmap, Open(group));
    PageRun run = bitmap->NextFree(first);
    if (run.pages != 0 && run.first == first) {
      run.pages = std::min(run.pages, want);
      return Mark(group, *bitmap, run);
    }
  }
  while (true) {
    const std::optional<uint64_t> group = allocator_.Choose(stream, want, full_);
    if (!group) {
      return Status::Error(ENOSPC, "no free pages left");
    }
    ASSIGN_OR_RETURN(GroupBitmap* const bitmap, Open(*group));
    const auto effect = effects_.find(*group);
    const uint32_t from = effect != effects_.end() ? effect->second.next : allocator_.NextIn(*group);
    PageRun run = bitmap->FindFree(from, want);
    if (run.pages == 0) {
      full_.insert(*group);
      continue;
    }
    run.pages = std::min(run.pages, want);
    return Mark(*group, *bitmap, run);
  }
}

Result<std::vector<RegionRange>> SpaceChange::Take(InodeNumber ino, uint64_t pages, std::optional<PageIndex> goal) {
  stream_ = ino % Allocator::kStreams;
  std::vector<RegionRange> ranges;
  while (pages > 0) {
    ASSIGN_OR_RETURN(const RegionRange range, TakeOne(*stream_, pages, goal));
    ranges.push_back(range);
    pages -= range.pages;
    goal.reset();
  }
  return ranges;
}

// In pieces, each of which is made free in one step.
Status SpaceChange::Free(const RegionRange& range) {
  pending_ += static_cast<int64_t>(range.pages);
  const uint64_t end = range.first.value + range.pages;
  for (uint64_t page = range.first.value; page < end; page += kMostPending) {
    RETURN_IF_ERROR(
        transaction_.Put(PendingKey(range.server, {page}), EncodeNumber(std::min(kMostPending, end - page))));
  }
  return Status::Ok();
}

Status SpaceChange::TakePending(const RegionRange& range) {
  const std::string key = PendingKey(range.server, range.first);
  ASSIGN_OR_RETURN(const auto value, transaction_.GetForUpdate(key));
  if (!value || value != EncodeNumber(range.pages) || range.server != allocator_.server()) {
    return Status::Error(EINVAL, "not a pending-free range");
  }
  if (range.first.value >= capacity_ || range.pages > capacity_ - range.first.value) {
    return Status::Error(EIO, "a pending-free range lies outside of the region: run termfs fsck");
  }
  pending_ -= static_cast<int64_t>(range.pages);
  return transaction_.Delete(key);
}

Status SpaceChange::Adopt(const RegionRange& range) { return TakePending(range); }

Status SpaceChange::Reclaim(const RegionRange& range) {
  RETURN_IF_ERROR(TakePending(range));
  const uint64_t end = range.first.value + range.pages;
  for (uint64_t page = range.first.value; page < end;) {
    const uint64_t group = page / kGroupPages;
    const PageRun run{static_cast<uint32_t>(page % kGroupPages),
                      static_cast<uint32_t>(std::min(end, (group + 1) * kGroupPages) - page)};
    ASSIGN_OR_RETURN(GroupBitmap* const bitmap, Open(group));
    if (!bitmap->AllTaken(run)) {
      return Status::Error(EIO, "a pending-free range is free already: run termfs fsck");
    }
    bitmap->Release(run);
    effects_[group].taken -= run.pages;
    effects_[group].freed_beyond += static_cast<int64_t>(page + run.pages - std::clamp(end_, page, page + run.pages));
    page += run.pages;
  }
  return Status::Ok();
}

Status SpaceChange::Flush() {
  // The bitmaps of what was taken are claimed; so who draws the line after this look finds the pages taken.
  if (taken_end_ > allocator_.end()) {
    return Status::Error(EAGAIN, "space was taken where the region is about to end");
  }
  for (auto& [group, effect] : effects_) {
    const GroupBitmap& bitmap = groups_.at(group);
    effect.longest = bitmap.LongestFree();
    RETURN_IF_ERROR(transaction_.Put(GroupKey(allocator_.server(), group), bitmap.Encode()));
  }
  return Status::Ok();
}

void SpaceChange::Publish() { allocator_.Publish(effects_, pending_, stream_); }

}  // namespace termfs::metadata
