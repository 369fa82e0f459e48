// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/cleaner.h"

#include <algorithm>
#include <array>
#include <memory>

#include "base/log.h"
#include "tlib/server/page_runs.h"

namespace termfs::tlib::server {
namespace {

using std::chrono::milliseconds;

constexpr size_t kBatchPages = LongPageRuns::kMaxPages;
// Dirty pages at which the cleaner begins, and at which it stops, with those that would have to go next anyhow: what is
// written again and again gains nothing by being written back in between. Of the others it begins later.
constexpr uint64_t DirtyHigh(uint64_t frames) { return frames * 8 / 16; }
constexpr uint64_t DirtyLow(uint64_t frames) { return frames * 6 / 16; }
constexpr uint64_t HotDirtyHigh(uint64_t frames) { return frames * 14 / 16; }
constexpr uint64_t HotDirtyLow(uint64_t frames) { return frames * 13 / 16; }
constexpr uint64_t AfterVainSearch(uint64_t frames) { return frames / 64; }  // more dirty ones, until the next
constexpr size_t kSearchedPages = 16384;                                     // of the queue, for a batch of cold ones
constexpr milliseconds kOld{30'000};  // what is dirty for so long is written back in any case; as the kernel does
constexpr milliseconds kPeriod{500};
constexpr milliseconds kAfterError{200};
constexpr size_t kManyPendingMarks = 4096;
constexpr uint64_t kPagesPerTurn = 65536;  // looked at before other tasks get their turn

}  // namespace

Cleaner::Cleaner(BlockDevice& device, WrittenLog& log, Frames& frames, PageStates& states, FrameSupply& supply,
                 StorageMetrics& metrics)
    : device_(device),
      log_(log),
      frames_(frames),
      states_(states),
      supply_(supply),
      metrics_(metrics),
      commit_([this] { return CommitOnce(); }),
      background_([this] { return Round(); }),
      passing_([this] { return PassingRound(); }),
      committer_([this] { return CommitRound(); }) {}

void Cleaner::NoteDirty(std::span<const PageIndex> pages) {
  {
    const Clock::time_point now = Clock::now();
    MutexLock lock(mutex_);
    for (const PageIndex page : pages) {
      dirty_.push_back({page, now});
    }
  }
  if (states_.dirty() > kick_at_.load(std::memory_order_relaxed)) {
    Kick();
  }
  if (supply_.TakePassingDue()) {
    passing_.Kick();
  }
}

bool Cleaner::AddPendingMark(PageIndex page) {
  MutexLock lock(mutex_);
  pending_marks_.push_back(page);
  return pending_marks_.size() >= kManyPendingMarks;
}

void Cleaner::NotePendingMark(PageIndex page) {
  if (AddPendingMark(page)) {
    committer_.Kick();
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Write-back.

template <typename Runs>
Status Cleaner::WriteBackTogether(std::span<const PageIndex> pages, Runs& runs, std::vector<PageIndex>& skipped) {
  InlineVector<PageIndex, Runs::kMaxPages> begun;
  for (const PageIndex page : pages) {
    if (const auto frame = states_.BeginWriteBack(page); frame.has_value()) {
      begun.Push(page);
      runs.Add(page, frames_.data(*frame));
    } else {
      skipped.push_back(page);
    }
  }
  if (runs.empty()) {
    return Status::Ok();
  }
  device_.Run(runs.ios());
  NoteSsdWrite();
  metrics_.write_backs.Add(runs.pages());
  bool many = false;
  for (uint32_t i = 0; i < runs.pages(); i++) {
    const PageStates::WriteBackEnd end = states_.EndWriteBack(
        begun[i], runs.StatusOf(i).ok(), [this, page = begun[i], &many] { many |= AddPendingMark(page); });
    if (end.queue) {
      NoteDirty(begun[i]);
    }
  }
  if (many) {
    committer_.Kick();
  }
  return runs.FirstError().WithContext("write back dirty pages");
}

Status Cleaner::WriteBack(std::span<const PageIndex> pages, std::vector<PageIndex>& skipped) {
  if (pages.size() <= PageRuns::kMaxPages) {
    PageRuns runs(BlockIo::Kind::kWrite);
    return WriteBackTogether(pages, runs, skipped);
  }
  Status first_error;
  for (size_t at = 0; at < pages.size(); at += LongPageRuns::kMaxPages) {
    const size_t count = std::min<size_t>(LongPageRuns::kMaxPages, pages.size() - at);
    const auto runs = std::make_unique<LongPageRuns>(BlockIo::Kind::kWrite);
    Status status = WriteBackTogether(pages.subspan(at, count), *runs, skipped);
    if (!status.ok() && first_error.ok()) {
      first_error = std::move(status);
    }
  }
  return first_error;
}

std::vector<PageIndex> Cleaner::Take(Which which) {
  std::vector<PageIndex> pages;
  {
    MutexLock lock(mutex_);
    if (which == Which::kCold) {
      TakeCold(pages);
    } else {
      TakeOldest(which == Which::kOld, pages);
    }
  }
  for (const PageIndex page : pages) {
    states_.SetUnqueued(page);
  }
  std::sort(pages.begin(), pages.end());
  return pages;
}

void Cleaner::TakeOldest(bool only_old, std::vector<PageIndex>& pages) {
  const Clock::time_point old = Clock::now() - kOld;
  while (!dirty_.empty() && pages.size() < kBatchPages && (!only_old || dirty_.front().since <= old)) {
    pages.push_back(dirty_.front().page);
    dirty_.pop_front();
  }
}

// Goes on where the last search ended, so that those that stay are not looked at again and again.
void Cleaner::TakeCold(std::vector<PageIndex>& pages) {
  hand_ = hand_ < dirty_.size() ? hand_ : 0;
  const auto begin = dirty_.begin() + static_cast<std::ptrdiff_t>(hand_);
  const auto end = begin + static_cast<std::ptrdiff_t>(std::min(kSearchedPages, dirty_.size() - hand_));
  auto kept = begin;
  auto next = begin;
  for (; next != end && pages.size() < kBatchPages; ++next) {
    if (supply_.Deserves(next->page)) {
      *kept++ = *next;
    } else {
      pages.push_back(next->page);
    }
  }
  hand_ = static_cast<size_t>(kept - dirty_.begin());
  dirty_.erase(kept, next);
}

bool Cleaner::HasPendingMarks() {
  MutexLock lock(mutex_);
  return !pending_marks_.empty();
}

// What leaves memory because it is cold, or old, need not be durable earlier than the kernel's page cache makes it; but
// a frame is not given up before its page is marked.
bool Cleaner::CleanBatch(Which which) {
  return CleanPages(Take(which), which == Which::kOld ? ThenCommit::kAlways : ThenCommit::kIfMarksArePending);
}

milliseconds Cleaner::PassingRound() {
  bool more = true;
  for (size_t looked_at = 0; more && looked_at < supply_.passing_capacity() / 2; looked_at += kBatchPages) {
    std::vector<PageIndex> pages = supply_.NextToPass(kBatchPages);
    std::sort(pages.begin(), pages.end());
    more = !background_.stopping() && CleanPages(pages, ThenCommit::kLater);
  }
  PauseAfterError();
  return kPeriod;
}

bool Cleaner::CleanPages(std::span<const PageIndex> pages, ThenCommit commit) {
  if (pages.empty()) {
    return false;
  }
  std::vector<PageIndex> skipped;
  Status status = WriteBack(pages, skipped);
  for (const PageIndex page : skipped) {  // clean by now, or somebody was writing to it
    if (states_.RequeueIfDirty(page)) {
      NoteDirty(page);
    }
  }
  const bool marks = HasPendingMarks();
  if (status.ok() && marks && commit == ThenCommit::kLater) {
    committer_.Kick();  // which notes the outcome
    return true;
  }
  if (status.ok() && (marks || commit == ThenCommit::kAlways)) {
    status = Commit();
  }
  NoteOutcome(status);
  return status.ok();
}

// One line when the device begins to refuse, one when it has recovered.
void Cleaner::NoteOutcome(const Status& status) {
  if (failing_.exchange(!status.ok()) == status.ok()) {
    if (status.ok()) {
      LOG_WARNING("dirty pages are being written back again");
    } else {
      LOG_ERROR("dirty pages stay in memory, tried again every {} ms: {}", kAfterError.count(), status.ToString());
    }
  }
}

// Kicks do not cut it short: whoever dirties pages kicks, all the time.
bool Cleaner::PauseAfterError() {
  if (!failing_.load(std::memory_order_relaxed)) {
    return false;
  }
  const Clock::time_point end = Clock::now() + kAfterError;
  while (!background_.stopping() && Clock::now() < end) {
    Task::ParkUntil(end);
  }
  return true;
}

void Cleaner::CleanDownTo(uint64_t dirty, Which which) {
  // A search finds nothing where many hot pages lie in a row; in vain is once round.
  uint64_t searches = which == Which::kCold ? states_.dirty() / kSearchedPages + 1 : 0;
  while (!background_.stopping() && states_.dirty() > dirty) {
    if (CleanBatch(which)) {
      supply_.RefillReserve();
    } else if (searches-- == 0 || failing_.load(std::memory_order_relaxed)) {
      return;
    } else {
      Task::Yield();
    }
  }
}

milliseconds Cleaner::Round() {
  const uint32_t limit = frames_.limit();
  kick_at_.store(DirtyHigh(limit), std::memory_order_relaxed);
  if (states_.dirty() > DirtyHigh(limit)) {
    CleanDownTo(DirtyLow(limit), Which::kCold);
    if (states_.dirty() > HotDirtyHigh(limit)) {
      CleanDownTo(HotDirtyLow(limit), Which::kOldest);
    }
    const uint64_t more = states_.dirty() + AfterVainSearch(limit);
    kick_at_.store(std::clamp(more, DirtyHigh(limit), HotDirtyHigh(limit)), std::memory_order_relaxed);
  }
  while (!background_.stopping() && CleanBatch(Which::kOld)) {
  }
  if (HasPendingMarks() && supply_.ReserveLow()) {
    NoteOutcome(Commit());  // or nothing can be evicted
  } else if (HasPendingMarks()) {
    committer_.Kick();
  }
  while (!background_.stopping() && supply_.ReserveLow()) {
    if (!supply_.RefillReserve() && !CleanBatch(Which::kCold) && !CleanBatch()) {
      break;
    }
    Task::Yield();
  }
  PauseAfterError();
  return kPeriod;
}

milliseconds Cleaner::CommitRound() {
  if (HasPendingMarks()) {
    NoteOutcome(Commit());
  }
  PauseAfterError();
  return kPeriod;
}

// ---------------------------------------------------------------------------------------------------------------
// Flush.

// Somebody writes to the page, or it is being written back already, perhaps without the latest bytes.
Status Cleaner::WriteBackBusy(PageIndex page) {
  std::vector<PageIndex> skipped;
  do {
    skipped.clear();
    if (states_.AwaitQuiet(page).state() == PageState::kDirty) {
      RETURN_IF_ERROR(WriteBack({&page, 1}, skipped));
    }
  } while (!skipped.empty());  // a writer came in between, or somebody else writes it back: that is to end, too
  return Status::Ok();
}

Status Cleaner::WriteBackRange(PageRange range) {
  Status first_error;
  const auto keep = [&first_error](Status status) {
    if (!status.ok() && first_error.ok()) {
      first_error = std::move(status);
    }
  };
  std::vector<PageIndex> dirty;
  std::vector<PageIndex> busy;
  for (uint64_t i = 0; i < range.count; i++) {
    const PageIndex page{range.first.value + i};
    const PageEntry entry = states_.Peek(page);
    if (entry.exclusive() || entry.writing_back()) {
      busy.push_back(page);
    } else if (entry.state() == PageState::kDirty) {
      dirty.push_back(page);
    }
    if (dirty.size() == kBatchPages) {
      keep(WriteBack(dirty, busy));
      dirty.clear();
    }
    if (i % kPagesPerTurn == kPagesPerTurn - 1) {
      Task::Yield();
    }
  }
  keep(WriteBack(dirty, busy));
  for (const PageIndex page : busy) {
    keep(WriteBackBusy(page));
  }
  return first_error;
}

Status Cleaner::Flush(std::span<const PageRange> ranges) {
  metrics_.flushes.Add();
  Status first_error;
  for (const PageRange& range : ranges) {
    Status status = WriteBackRange(range);
    if (!status.ok() && first_error.ok()) {
      first_error = std::move(status);
    }
  }
  Status committed = Commit();
  return first_error.ok() ? std::move(committed) : std::move(first_error);
}

// ---------------------------------------------------------------------------------------------------------------
// Commit.

Status Cleaner::CommitOnce() {
  const uint64_t written = ssd_writes_.load(std::memory_order_acquire);
  std::vector<PageIndex> pages;
  {
    MutexLock lock(mutex_);
    pages.swap(pending_marks_);
  }
  if (written == flushed_writes_ && pages.empty()) {
    return Status::Ok();
  }
  std::erase_if(pages, [this](PageIndex page) { return !states_.BeginMark(page); });
  Status status = device_.Flush();
  if (status.ok()) {
    flushed_writes_ = written;
    status = MarkAll(pages);
  } else {
    failed_flushes_.fetch_add(1, std::memory_order_release);
  }
  for (const PageIndex page : pages) {
    if (states_.EndMark(page, status.ok()) && !status.ok()) {
      MutexLock lock(mutex_);
      pending_marks_.push_back(page);
    }
  }
  return status;
}

Status Cleaner::MarkAll(std::span<const PageIndex> pages) {
  if (pages.empty()) {
    return Status::Ok();
  }
  for (const PageIndex page : pages) {
    // Under the page's stripe: Zero either cleared `committing` before, or clears the mark after.
    states_.WhileCommitting(page, [this, page] { log_.Set(page); });
  }
  return log_.Sync();
}

}  // namespace termfs::tlib::server
