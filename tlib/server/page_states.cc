// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/page_states.h"

#include "base/check.h"

namespace termfs::tlib::server {
namespace {

bool IsDirty(PageState state) { return state >= PageState::kDirty; }
bool IsPresent(PageState state) { return state >= PageState::kClean; }

}  // namespace

PageStates::PageStates(driver::TermRegion& term, std::span<std::atomic<uint64_t>> cells, uint64_t pages)
    : term_(term), cells_(cells), pages_(pages), stripes_(std::make_unique<Stripe[]>(kStripes)) {}

void PageStates::Resize(uint64_t pages) {
  TERMFS_CHECK(pages <= cells_.size());
  pages_.store(pages, std::memory_order_release);
}

std::atomic<uint64_t>& PageStates::Cell(PageIndex page) const {
  TERMFS_CHECK(page.value < cells_.size());
  return cells_[page.value];
}

void PageStates::SetMarkedAtOpen(PageIndex page) {
  PageEntry entry = Load(page);
  entry.set_on_ssd(true);
  entry.set_marked(true);
  Store(page, entry);
}

PageEntry PageStates::Resume(PageIndex page, bool logged) {
  const PageEntry left = Load(page);
  PageEntry entry;
  entry.set_on_ssd(left.on_ssd());
  entry.set_marked(left.on_ssd() && logged);
  entry.set_mark_pending(left.on_ssd() && !logged);
  if (left.state() > PageState::kWritingBackRedirtied) {
    entry.set_frame({UINT32_MAX});
    ChangeState(entry, PageState::kClean);
  } else if (left.present()) {
    entry.set_frame(left.frame());
    ChangeState(entry, IsDirty(left.state()) ? PageState::kDirty : PageState::kClean);
    entry.set_queued(IsDirty(left.state()));
  }
  if (entry.bits() != left.bits()) {  // of most pages nothing was under way; their memory stays as it is
    Store(page, entry);
  }
  return entry;
}

void PageStates::ChangeState(PageEntry& entry, PageState state) {
  const PageState old = entry.state();
  entry.set_state(state);
  if (IsPresent(old) != IsPresent(state)) {
    present_.fetch_add(IsPresent(state) ? 1 : uint64_t{0} - 1, std::memory_order_relaxed);
  }
  if (IsDirty(old) != IsDirty(state)) {
    dirty_.fetch_add(IsDirty(state) ? 1 : uint64_t{0} - 1, std::memory_order_relaxed);
  }
}

// True when the page was not queued yet: the caller tells the cleaner.
bool PageStates::QueueDirty(PageEntry& entry) {
  const bool queue = !entry.queued();
  entry.set_queued(true);
  return queue;
}

// ---------------------------------------------------------------------------------------------------------------
// Waiting.

void PageStates::WakeAll(Stripe& stripe, PageIndex page, PageEntry& entry) {
  if (!entry.waiters()) {
    return;
  }
  entry.set_waiters(false);
  for (Waiter** at = &stripe.waiters; *at != nullptr;) {
    Waiter* const waiter = *at;
    if (waiter->page != page) {
      at = &waiter->next;
      continue;
    }
    *at = waiter->next;
    waiter->queued = false;
    waiter->task->Unpark();  // under the mutex, so the waiter is still there
  }
}

void PageStates::Wait(Stripe& stripe, PageIndex page) {
  Waiter waiter{.page = page, .task = &Task::Current(), .next = nullptr, .queued = true};
  PageEntry entry = Load(page);
  entry.set_waiters(true);
  Store(page, entry);
  Waiter** at = &stripe.waiters;  // at the end: first come, first woken
  while (*at != nullptr) {
    at = &(*at)->next;
  }
  *at = &waiter;
  while (waiter.queued) {
    stripe.mutex.Unlock();
    Task::Park();  // bounded by device I/O and by the deadlines of those who hold pages
    stripe.mutex.Lock();
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Holds.

PageEntry PageStates::AcquireShared(PageIndex page) {
  Stripe& stripe = StripeOf(page);
  MutexLock lock(stripe.mutex);
  PageEntry entry = Load(page);
  while (entry.exclusive() || entry.exclusive_wanted() || entry.state() == PageState::kLoading) {
    Wait(stripe, page);
    entry = Load(page);
  }
  TERMFS_CHECK(entry.readers() < PageEntry::kMaxReaders);
  entry.set_readers(entry.readers() + 1);
  Store(page, entry);
  return entry;
}

void PageStates::ReleaseShared(PageIndex page) {
  Stripe& stripe = StripeOf(page);
  MutexLock lock(stripe.mutex);
  PageEntry entry = Load(page);
  TERMFS_CHECK(entry.readers() > 0);
  entry.set_readers(entry.readers() - 1);
  if (entry.readers() == 0) {
    WakeAll(stripe, page, entry);
  }
  Store(page, entry);
}

PageEntry PageStates::AcquireExclusive(PageIndex page, WriteBack write_back) {
  Stripe& stripe = StripeOf(page);
  MutexLock lock(stripe.mutex);
  PageEntry entry = Load(page);
  while (entry.held() || entry.state() == PageState::kLoading ||
         (write_back == WriteBack::kMustEnd && entry.writing_back())) {
    entry.set_exclusive_wanted(true);  // new readers wait, so that old ones end
    Store(page, entry);
    Wait(stripe, page);
    entry = Load(page);
  }
  entry.set_exclusive(true);
  entry.set_exclusive_wanted(false);  // others who want it set it again
  Store(page, entry);
  return entry;
}

void PageStates::ReleaseExclusive(PageIndex page) {
  Stripe& stripe = StripeOf(page);
  MutexLock lock(stripe.mutex);
  PageEntry entry = Load(page);
  TERMFS_CHECK(entry.exclusive());
  entry.set_exclusive(false);
  WakeAll(stripe, page, entry);
  Store(page, entry);
}

// ---------------------------------------------------------------------------------------------------------------
// By the exclusive holder.

bool PageStates::MarkDirty(PageIndex page) {
  MutexLock lock(StripeOf(page).mutex);
  PageEntry entry = Load(page);
  TERMFS_CHECK(entry.exclusive() && entry.present());
  bool queue = false;
  if (entry.state() == PageState::kClean) {
    ChangeState(entry, PageState::kDirty);
    queue = QueueDirty(entry);
  } else if (entry.state() == PageState::kWritingBack) {
    ChangeState(entry, PageState::kWritingBackRedirtied);  // EndWriteBack queues it
  }
  Store(page, entry);
  return queue;
}

bool PageStates::Install(PageIndex page, driver::FrameIndex frame) {
  MutexLock lock(StripeOf(page).mutex);
  PageEntry entry = Load(page);
  TERMFS_CHECK(entry.exclusive() && entry.state() == PageState::kAbsent);
  entry.set_frame(frame);
  ChangeState(entry, PageState::kDirty);
  const bool queue = QueueDirty(entry);
  Store(page, entry);
  term_.Publish(page, frame);
  return queue;
}

PageStates::Installed PageStates::TryInstall(PageIndex page, driver::FrameIndex frame,
                                             const std::function<Status()>& check) {
  MutexLock lock(StripeOf(page).mutex);
  PageEntry entry = Load(page);
  Installed installed;
  if (entry.state() != PageState::kAbsent || entry.held() || entry.exclusive_wanted()) {
    return installed;
  }
  if (check) {
    installed.checked = check();
    if (!installed.checked.ok()) {
      return installed;
    }
  }
  entry.set_frame(frame);
  ChangeState(entry, PageState::kDirty);
  installed.done = true;
  installed.queue = QueueDirty(entry);
  Store(page, entry);
  term_.Publish(page, frame);
  return installed;
}

void PageStates::InstallClean(PageIndex page, driver::FrameIndex frame) {
  MutexLock lock(StripeOf(page).mutex);
  PageEntry entry = Load(page);
  TERMFS_CHECK(entry.exclusive() && entry.state() == PageState::kAbsent);
  entry.set_frame(frame);
  ChangeState(entry, PageState::kClean);
  Store(page, entry);
  term_.Publish(page, frame);
}

std::optional<driver::FrameIndex> PageStates::Drop(PageIndex page) {
  MutexLock lock(StripeOf(page).mutex);
  PageEntry entry = Load(page);
  TERMFS_CHECK(entry.exclusive() && !entry.writing_back());
  std::optional<driver::FrameIndex> frame;
  if (entry.present()) {
    frame = entry.frame();
    term_.Hide(page);
  }
  ChangeState(entry, PageState::kAbsent);
  entry.set_on_ssd(false);
  entry.set_marked(false);
  entry.set_mark_pending(false);
  entry.set_mark_committing(false);
  Store(page, entry);
  return frame;
}

driver::FrameIndex PageStates::Move(PageIndex page, driver::FrameIndex frame) {
  MutexLock lock(StripeOf(page).mutex);
  PageEntry entry = Load(page);
  TERMFS_CHECK(entry.exclusive() && entry.present() && !entry.writing_back());
  const driver::FrameIndex old = entry.frame();
  entry.set_frame(frame);
  Store(page, entry);
  term_.Publish(page, frame);
  return old;
}

void PageStates::PublishAgain(PageIndex page) {
  MutexLock lock(StripeOf(page).mutex);
  const PageEntry entry = Load(page);
  TERMFS_CHECK(entry.exclusive() && entry.present());
  term_.Publish(page, entry.frame());
}

bool PageStates::MarkOnSsd(PageIndex page) {
  MutexLock lock(StripeOf(page).mutex);
  PageEntry entry = Load(page);
  TERMFS_CHECK(entry.exclusive() && entry.state() == PageState::kAbsent);
  entry.set_on_ssd(true);
  const bool pending = !entry.marked() && !entry.mark_pending() && !entry.mark_committing();
  if (pending) {
    entry.set_mark_pending(true);
  }
  Store(page, entry);
  return pending;
}

// ---------------------------------------------------------------------------------------------------------------
// Loading, writing back, evicting.

bool PageStates::BeginLoad(PageIndex page, driver::FrameIndex frame) {
  MutexLock lock(StripeOf(page).mutex);
  PageEntry entry = Load(page);
  if (entry.state() != PageState::kAbsent || entry.exclusive()) {
    return false;
  }
  entry.set_frame(frame);
  ChangeState(entry, PageState::kLoading);
  Store(page, entry);
  return true;
}

void PageStates::EndLoad(PageIndex page, bool ok) {
  Stripe& stripe = StripeOf(page);
  MutexLock lock(stripe.mutex);
  PageEntry entry = Load(page);
  TERMFS_CHECK(entry.state() == PageState::kLoading);
  ChangeState(entry, ok ? PageState::kClean : PageState::kAbsent);
  if (ok) {
    term_.Publish(page, entry.frame());
  }
  WakeAll(stripe, page, entry);
  Store(page, entry);
}

std::optional<driver::FrameIndex> PageStates::BeginWriteBack(PageIndex page) {
  MutexLock lock(StripeOf(page).mutex);
  PageEntry entry = Load(page);
  if (entry.state() != PageState::kDirty || entry.exclusive()) {
    return std::nullopt;
  }
  ChangeState(entry, PageState::kWritingBack);
  Store(page, entry);
  return entry.frame();
}

PageStates::WriteBackEnd PageStates::EndWriteBack(PageIndex page, bool ok, const std::function<void()>& on_pending) {
  Stripe& stripe = StripeOf(page);
  MutexLock lock(stripe.mutex);
  PageEntry entry = Load(page);
  TERMFS_CHECK(entry.writing_back());
  WriteBackEnd end;
  const bool still_dirty = !ok || entry.state() == PageState::kWritingBackRedirtied;
  ChangeState(entry, still_dirty ? PageState::kDirty : PageState::kClean);
  if (still_dirty) {
    end.queue = QueueDirty(entry);
  }
  if (ok) {
    entry.set_on_ssd(true);
    if (!entry.marked() && !entry.mark_pending() && !entry.mark_committing()) {
      entry.set_mark_pending(true);
      end.mark_pending = true;
      if (on_pending) {
        on_pending();
      }
    }
  }
  WakeAll(stripe, page, entry);
  Store(page, entry);
  return end;
}

PageEntry PageStates::AwaitQuiet(PageIndex page) {
  Stripe& stripe = StripeOf(page);
  MutexLock lock(stripe.mutex);
  PageEntry entry = Load(page);
  while (entry.exclusive() || entry.writing_back()) {
    Wait(stripe, page);
    entry = Load(page);
  }
  return entry;
}

void PageStates::SetUnqueued(PageIndex page) {
  MutexLock lock(StripeOf(page).mutex);
  PageEntry entry = Load(page);
  entry.set_queued(false);
  Store(page, entry);
}

bool PageStates::RequeueIfDirty(PageIndex page) {
  MutexLock lock(StripeOf(page).mutex);
  PageEntry entry = Load(page);
  const bool queue = entry.state() == PageState::kDirty && QueueDirty(entry);
  Store(page, entry);
  return queue;
}

bool PageStates::TryEvict(PageIndex page, driver::FrameIndex frame) {
  MutexLock lock(StripeOf(page).mutex);
  PageEntry entry = Load(page);
  if (entry.state() != PageState::kClean || entry.held() || entry.exclusive_wanted() || entry.mark_pending() ||
      entry.mark_committing() || entry.frame() != frame) {
    return false;
  }
  ChangeState(entry, PageState::kAbsent);
  Store(page, entry);
  term_.Hide(page);
  return true;
}

// ---------------------------------------------------------------------------------------------------------------
// Written marks.

bool PageStates::BeginMark(PageIndex page) {
  MutexLock lock(StripeOf(page).mutex);
  PageEntry entry = Load(page);
  if (!entry.mark_pending()) {
    return false;
  }
  entry.set_mark_pending(false);
  entry.set_mark_committing(true);
  Store(page, entry);
  return true;
}

void PageStates::WhileCommitting(PageIndex page, const std::function<void()>& action) {
  MutexLock lock(StripeOf(page).mutex);
  if (Load(page).mark_committing()) {
    action();
  }
}

bool PageStates::EndMark(PageIndex page, bool ok) {
  MutexLock lock(StripeOf(page).mutex);
  PageEntry entry = Load(page);
  if (!entry.mark_committing()) {
    return false;
  }
  entry.set_mark_committing(false);
  if (ok) {
    entry.set_marked(true);
  } else {
    entry.set_mark_pending(true);
  }
  Store(page, entry);
  return true;
}

}  // namespace termfs::tlib::server
