// SPDX-License-Identifier: Apache-2.0
#include "fs/server/reclaimer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"

namespace termfs::fs::server {

namespace {

constexpr std::chrono::milliseconds kPeriod{1000};
constexpr std::chrono::milliseconds kGather{20};
constexpr std::chrono::milliseconds kGraceStep{100};  // graces that end within it end together
constexpr size_t kBatch = 256;
constexpr uint64_t kPagesPerStep = 65536;  // flushed or freed, before it is looked whether anything else is to be done
constexpr std::chrono::milliseconds kCountTurn{50};  // of a pass, for what may take minutes

}  // namespace

void Reclaimer::Start(tlib::server::Server& server) {
  server_ = &server;
  thread_ = std::thread([this] { Loop(); });
  log_thread_ = std::thread([this] { SyncLogs(); });
}

void Reclaimer::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.NotifyAll();
    log_wake_.NotifyAll();
    pass_ended_.NotifyAll();
  }
  if (thread_.joinable()) {
    thread_.join();
    log_thread_.join();
  }
}

Status Reclaimer::Finish() {
  Status closed = CloseInodes();
  Status written = WriteDirtyTimes();
  {
    MutexLock lock(mutex_);
    needs_space_ = true;
  }
  EndGraces();
  ReleaseOrphans();  // those that stay are the next server's
  Status synced = names_.Sync();
  return !closed.ok() ? closed : !written.ok() ? written : synced;
}

bool Reclaimer::stopping() {
  MutexLock lock(mutex_);
  return stopping_;
}

void Reclaimer::AddOrphan(uint64_t ino) {
  MutexLock lock(mutex_);
  orphans_.insert(ino);
  PassSoon();
}

void Reclaimer::ForgetOrphan(uint64_t ino) {
  MutexLock lock(mutex_);
  orphans_.erase(ino);
}

void Reclaimer::NoteGrace() {
  const auto end = replaced_.NextEnd();
  const bool ended_early = replaced_.AnyEndedEarly();
  MutexLock lock(mutex_);
  if (ended_early) {
    PassSoon();
  }
  if (end && !next_grace_) {
    next_grace_ = *end + kGraceStep;
    wake_.NotifyAll();
  }
}

void Reclaimer::NoteFreed() {
  MutexLock lock(mutex_);
  PassSoon();
}

void Reclaimer::PassSoon() {
  if (!gathering_until_) {
    gathering_until_ = std::chrono::steady_clock::now() + kGather;
    wake_.NotifyAll();
  }
}

void Reclaimer::AddTruncation(uint64_t ino) {
  MutexLock lock(mutex_);
  truncations_.insert(ino);
  kicked_ = true;
  wake_.NotifyAll();
}

void Reclaimer::AddCount(uint64_t dir, std::shared_ptr<const void> until) {
  MutexLock lock(mutex_);
  new_counts_.push_back({metadata::Namespace::QuotaCount(dir), std::move(until)});
  kicked_ = true;
  wake_.NotifyAll();
}

void Reclaimer::AddClosed(uint64_t ino) {
  MutexLock lock(mutex_);
  closed_.insert(ino);
}

void Reclaimer::NoteDirty(uint64_t ino) {
  MutexLock lock(mutex_);
  dirty_.insert(ino);
}

void Reclaimer::NoteIfDirty(Inode& inode) {
  bool dirty;
  {
    MutexLock lock(inode.mutex);
    dirty = inode.times_dirty || inode.atime_dirty;
  }
  if (dirty) {
    NoteDirty(inode.ino);
  }
}

void Reclaimer::Kick() {
  MutexLock lock(mutex_);
  kicked_ = true;
  wake_.NotifyAll();
}

bool Reclaimer::HasOrphans() {
  MutexLock lock(mutex_);
  return !orphans_.empty() || releasing_ || !replaced_.empty();
}

void Reclaimer::WaitForSpace(Deadline deadline) {
  MutexLock lock(mutex_);
  const uint64_t wanted = passes_begun_ + 1;
  kicked_ = needs_space_ = true;
  wake_.NotifyAll();
  while (passes_ended_ < wanted && !stopping_ && std::chrono::steady_clock::now() < deadline) {
    pass_ended_.WaitUntil(mutex_, deadline);
  }
}

void Reclaimer::Loop() {
  for (uint64_t after = 0;;) {
    const auto orphans = names_.ListOrphans(after, kBatch);
    if (!orphans.ok() || orphans->empty()) {
      break;
    }
    MutexLock lock(mutex_);
    orphans_.insert(orphans->begin(), orphans->end());
    after = orphans->back();
  }
  for (uint64_t after = 0;;) {
    const auto truncations = names_.ListTruncations(after, kBatch);
    if (!truncations.ok() || truncations->empty()) {
      break;
    }
    MutexLock lock(mutex_);
    truncations_.insert(truncations->begin(), truncations->end());
    after = truncations->back();
  }
  ListCuts();
  auto next_tick = std::chrono::steady_clock::now() + kPeriod;
  bool settling = true;
  while (true) {
    {
      MutexLock lock(mutex_);
      ++passes_begun_;
    }
    Pass();
    if (std::chrono::steady_clock::now() >= next_tick) {
      [[maybe_unused]] const Status tried_again = WriteDirtyTimes();
      SettleCuts();
      next_tick = std::chrono::steady_clock::now() + kPeriod;
      settling = true;
    }
    settling = settling && !settled() && SettleStep();
    if (!settling) {
      DoWork();
    }
    MutexLock lock(mutex_);
    passes_ended_ = passes_begun_;
    pass_ended_.NotifyAll();
    const auto due = [&]() REQUIRES(mutex_) {
      return std::min({next_tick, gathering_until_.value_or(next_tick), next_grace_.value_or(next_tick)});
    };
    while (!stopping_ && !kicked_ && !settling && std::chrono::steady_clock::now() < due()) {
      wake_.WaitUntil(mutex_, due());
    }
    if (stopping_) {
      for (Work* work : work_) {
        work->result = Status::Error(ECANCELED, "the server stops");
        work->ended = true;
      }
      work_.clear();
      work_ended_.NotifyAll();
      return;
    }
    kicked_ = false;
    gathering_until_.reset();
  }
}

Status Reclaimer::Run(const std::function<Status()>& what) {
  Work work{.what = &what, .result = {}};
  MutexLock lock(mutex_);
  if (stopping_) {
    return Status::Error(ECANCELED, "the server stops");
  }
  work_.push_back(&work);
  kicked_ = needs_space_ = true;
  wake_.NotifyAll();
  while (!work.ended) {
    work_ended_.WaitUntil(mutex_, std::chrono::steady_clock::now() + kPeriod);
  }
  return work.result;
}

void Reclaimer::DoWork() {
  std::vector<Work*> all;
  {
    MutexLock lock(mutex_);
    all.swap(work_);
  }
  if (!all.empty()) {  // what waits for its grace to end is not in the way
    EndGraces();
    ReleaseOrphans();
  }
  for (Work* work : all) {
    Status result = (*work->what)();
    MutexLock lock(mutex_);
    work->result = std::move(result);
    work->ended = true;
    work_ended_.NotifyAll();
  }
}

bool Reclaimer::SettleStep() {
  const uint64_t pages = names_.superblock().capacity_pages;
  uint64_t begin;
  {
    MutexLock lock(mutex_);
    begin = settled_to_ = std::min(settled_to_, pages);  // the region may have become smaller
  }
  const tlib::server::PageRange range{PageIndex{begin}, std::min(kPagesPerStep, pages - begin)};
  const Status flushed = server_->RunInCoroutine([&] { return server_->region().Flush({&range, 1}); });
  if (std::exchange(settle_fails_, !flushed.ok()) == flushed.ok() && !flushed.ok()) {
    LOG_ERROR("flushing what is dirty in memory, tried again each second: {}", flushed.ToDebugString());
  }
  MutexLock lock(mutex_);
  if (flushed.ok() && settled_to_ == begin) {
    settled_to_ = begin + range.count;
    settled_.store(settled_to_ >= pages, std::memory_order_release);
  }
  return flushed.ok() && !settled();
}

void Reclaimer::Unsettle() {
  MutexLock lock(mutex_);
  settled_to_ = 0;
  settled_.store(false, std::memory_order_release);
}

void Reclaimer::Pass() {
  pass_();
  [[maybe_unused]] const Status tried_again = CloseInodes();
  EndGraces();
  ReleaseOrphans();
  EndTruncations();
  FreePending();
  CountTrees();
}

Reclaimer::Inodes Reclaimer::Take(Inodes Reclaimer::*set) {
  MutexLock lock(mutex_);
  return std::exchange(this->*set, {});
}

void Reclaimer::EndGraces() {
  bool all;
  {
    MutexLock lock(mutex_);
    all = std::exchange(needs_space_, false);
  }
  const std::vector<uint64_t> ended = all ? replaced_.TakeAll() : replaced_.TakeEnded(std::chrono::steady_clock::now());
  const auto next = replaced_.NextEnd();
  MutexLock lock(mutex_);
  orphans_.insert(ended.begin(), ended.end());
  next_grace_.reset();
  if (next) {
    next_grace_ = *next + kGraceStep;
  }
}

void Reclaimer::ReleaseOrphans() {
  if (clients_.AnyExpected()) {
    return;
  }
  Inodes orphans;
  {
    MutexLock lock(mutex_);
    orphans.swap(orphans_);
    releasing_ = !orphans.empty();
  }
  Inodes kept;
  Status failed;
  for (const uint64_t ino : orphans) {
    const InodeRef inode = inodes_.Get(ino);
    // Somebody whose caller has given up may still be writing to its pages.
    Result<bool> released = inode->gate.TryEnter(GateMode::kExclusive);
    if (*released) {
      released = ReleaseOrphan(*inode);
      inode->gate.Leave(GateMode::kExclusive);
    }
    if (!released.ok() && std::exchange(failed, released.status()).ok()) {  // not one line for each
      failures_.Report("releasing orphan", ino, failed);
    }
    if (!released.ok() || !*released) {
      kept.insert(ino);
    }
  }
  MutexLock lock(mutex_);
  orphans_.merge(kept);
  releasing_ = false;
}

Result<bool> Reclaimer::ReleaseOrphan(Inode& inode) {
  {
    MutexLock lock(inode.mutex);
    inode.unlinked = true;
    if (!inode.opens.empty() || inode.graces > 0) {
      return true;  // the last closer, or the end of the last grace, adds it again
    }
    // After the look at the openers: who has just lost one is expected since before, and who has come back has opened
    // before it is not expected any more.
    if (clients_.AnyExpected()) {
      return false;
    }
    inode.releasing = true;
    inode.ForgetExtents();  // for reads under way: what they find is not the file's any more
  }
  const Status released = names_.ReleaseOrphan(inode.ino);
  NoteChange();
  MutexLock lock(inode.mutex);
  inode.ForgetExtents();            // they may have looked them up again before that
  if (released.code() == EINVAL) {  // it was given a name before it was closed
    inode.unlinked = inode.releasing = false;
  } else if (!released.ok() && released.code() != ESTALE) {
    return released;  // part of it may be gone, so it stays one that nobody can open
  }
  return true;
}

void Reclaimer::EndTruncations() {
  Status failed;
  for (const uint64_t ino : Take(&Reclaimer::truncations_)) {
    while (!stopping()) {
      const Result<bool> more = names_.TruncateStep(ino);
      if (!more.ok()) {
        if (std::exchange(failed, more.status()).ok()) {
          failures_.Report("truncating inode", ino, failed);
        }
        if (more.status().code() != ESTALE) {
          MutexLock lock(mutex_);
          truncations_.insert(ino);
        }
      }
      if (!more.ok() || !*more) {
        break;
      }
    }
    freed_(ino);
  }
}

std::string Reclaimer::CountFailure(uint64_t dir) {
  MutexLock lock(mutex_);
  const auto found = count_failures_.find(dir);
  return found == count_failures_.end() ? "" : found->second;
}

void Reclaimer::NoteCount(uint64_t dir, const Status& status) {
  bool is_new = false;
  {
    MutexLock lock(mutex_);
    if (status.ok()) {
      count_failures_.erase(dir);
    } else {
      is_new = count_failures_.insert_or_assign(dir, status.ToString()).second;
    }
  }
  if (is_new) {
    LOG_ERROR("counting what is below inode {}, which has a quota, tried again each second: {}", dir,
              status.ToDebugString());
  }
}

// One that fails goes behind the others, so that it holds up none.
void Reclaimer::CountTrees() {
  {
    MutexLock lock(mutex_);
    std::move(new_counts_.begin(), new_counts_.end(), std::back_inserter(counts_));
    new_counts_.clear();
  }
  std::deque<Count> failed;  // for the next pass
  const auto end = std::chrono::steady_clock::now() + kCountTurn;
  while (!counts_.empty() && !stopping()) {
    metadata::Namespace::QuotaCount& count = counts_.front().count;
    const Result<bool> more = names_.CountStep(count);
    NoteChange();
    NoteCount(count.project, more.status());
    if (!more.ok()) {
      failed.push_back(std::move(counts_.front()));
    }
    if (!more.ok() || !*more) {
      counts_.pop_front();
    }
    if (std::chrono::steady_clock::now() >= end) {
      break;
    }
  }
  if (!counts_.empty()) {
    Kick();
  }
  std::move(failed.begin(), failed.end(), std::back_inserter(counts_));
}

Status Reclaimer::CloseInodes() {
  Status failed;
  for (const uint64_t ino : Take(&Reclaimer::closed_)) {
    const InodeRef inode = inodes_.Find(ino);
    if (!inode) {
      continue;
    }
    if (!inode->gate.TryEnter(GateMode::kExclusive)) {
      AddClosed(ino);  // an operation of somebody else is under way
      continue;
    }
    const Result<bool> done = CloseLast(names_, *inode);
    inode->gate.Leave(GateMode::kExclusive);
    if (!done.ok()) {
      if (std::exchange(failed, done.status()).ok()) {
        failures_.Report("closing inode", ino, failed);
      }
      AddClosed(ino);
    } else if (*done && server_ != nullptr && !stopping()) {
      freed_(ino);
    }
    NoteIfDirty(*inode);
  }
  return failed;
}

// From where the last look ended, then once from the start: what is freed in order leaves deletions behind, and each
// look from the start would read all of them.
void Reclaimer::FreePending() {
  bool from_start = next_pending_.value == 0;
  while (!stopping() && names_.StatFs().pending_pages > 0) {
    const auto pending = names_.ListPendingFree(next_pending_, kBatch);
    if (!pending.ok()) {
      failures_.Report("listing freed space", pending.status());
      return;
    }
    if (pending->empty()) {
      next_pending_ = {};
      if (std::exchange(from_start, true)) {
        return;
      }
      continue;
    }
    size_t count = 0;
    for (uint64_t pages = 0; count < pending->size() && pages < kPagesPerStep; count++) {
      pages += (*pending)[count].pages;
    }
    const std::span<const metadata::RegionRange> step = std::span(*pending).first(count);
    if (const Status freed = Free(step); !freed.ok()) {
      failures_.Report("freeing space", freed);
      return;
    }
    NoteChange();
    next_pending_ = {step.back().first.value + step.back().pages};
  }
}

Status Reclaimer::Free(std::span<const metadata::RegionRange> pending) {
  // Not before it is durable: power loss may bring the file back, and its bytes must then be there.
  RETURN_IF_ERROR(names_.Sync());
  std::vector<tlib::server::PageRange> ranges;
  for (const metadata::RegionRange& range : pending) {
    ranges.push_back({range.first, range.pages});
  }
  RETURN_IF_ERROR(server_->RunInCoroutine([&] { return server_->region().Zero(ranges); }));
  return names_.CommitFree(pending);
}

Status Reclaimer::WriteDirtyTimes() {
  Status failed;
  for (const uint64_t ino : Take(&Reclaimer::dirty_)) {
    const InodeRef inode = inodes_.Find(ino);
    if (!inode) {
      continue;
    }
    if (!inode->gate.TryEnter(GateMode::kShared)) {
      NoteDirty(ino);
      continue;
    }
    const Status written = WriteTimes(names_, *inode);
    inode->gate.Leave(GateMode::kShared);
    if (!written.ok() && std::exchange(failed, written).ok()) {
      failures_.Report("writing the times of inode", ino, failed);
    }
    NoteIfDirty(*inode);
    NoteChange();
  }
  return failed;
}

// On a thread of its own: what else there is to do may take long.
void Reclaimer::SyncLogs() {
  while (true) {
    {
      MutexLock lock(mutex_);
      const auto due = std::chrono::steady_clock::now() + kPeriod;
      while (!stopping_ && std::chrono::steady_clock::now() < due) {
        log_wake_.WaitUntil(mutex_, due);
      }
      if (stopping_) {
        return;
      }
    }
    SyncLog();
  }
}

void Reclaimer::SyncLog() {
  if (!changed_.exchange(false, std::memory_order_relaxed)) {
    return;
  }
  const Status synced = names_.Sync();
  if (!synced.ok()) {
    failures_.Report("syncing the metadata log", synced);
    NoteChange();
  }
}

}  // namespace termfs::fs::server
