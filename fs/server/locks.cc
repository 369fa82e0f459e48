// SPDX-License-Identifier: Apache-2.0
#include "fs/server/locks.h"

#include <algorithm>

namespace termfs::fs::server {

const LockRange* LockTable::ConflictWith(const LockOwner& holder, const LockRanges& held, const LockRequest& request) {
  if (holder.flock != request.owner.flock || holder == request.owner || request.type == LockType::kUnlock) {
    return nullptr;
  }
  return held.Conflict(request.start, request.end, request.type == LockType::kWrite);
}

bool LockTable::Blocked(const File& file, const LockRequest& request) {
  return std::any_of(file.held.begin(), file.held.end(),
                     [&](const auto& held) { return ConflictWith(held.first, held.second, request) != nullptr; });
}

std::vector<LockOwner> LockTable::Blockers(const File& file, const LockRequest& request) {
  std::vector<LockOwner> blockers;
  for (const auto& [owner, held] : file.held) {
    if (ConflictWith(owner, held, request) != nullptr) {
      blockers.push_back(owner);
    }
  }
  return blockers;
}

std::optional<LockTable::Held> LockTable::Test(const LockRequest& request) const {
  const auto file = files_.find(request.ino);
  if (file == files_.end()) {
    return std::nullopt;
  }
  std::optional<Held> first;
  for (const auto& [owner, held] : file->second.held) {
    const LockRange* range = ConflictWith(owner, held, request);
    if (range != nullptr && (!first || range->start < first->range.start)) {
      first = Held{owner, *range};
    }
  }
  return first;
}

void LockTable::Closes(uint64_t ino, const LockOwner& owner, BootTime now) {
  const auto file = files_.find(ino);
  if (file == files_.end()) {
    return;
  }
  auto& closes = file->second.closes;
  std::erase_if(closes, [&](const auto& known) { return !file->second.held.contains(known.first); });
  if (!file->second.held.contains(owner)) {
    return;
  }
  const auto [since, is_new] = closes.try_emplace(owner, now);
  if (!is_new && now - since->second >= kMoment + kStaysOpen) {
    since->second = now;
  }
}

bool LockTable::MayEnd(const LockRequest& request, BootTime now) const {
  const std::optional<Held> held = Test(request);
  if (!held) {
    return false;
  }
  const auto& closes = files_.at(request.ino).closes;
  const auto since = closes.find(held->owner);
  return since != closes.end() && now - since->second < kMoment;
}

// Follows who waits for whom, as things are now. Only waits of record locks count, as in the kernel.
bool LockTable::Deadlocks(const LockRequest& request) const {
  std::set<LockOwner> seen;
  std::vector<LockOwner> next = Blockers(files_.at(request.ino), request);
  while (!next.empty()) {
    const LockOwner owner = next.back();
    next.pop_back();
    if (owner == request.owner) {
      return true;
    }
    const auto waits = waits_of_.find(owner);
    if (!seen.insert(owner).second || waits == waits_of_.end()) {
      continue;
    }
    for (const LockTicket& ticket : waits->second) {
      const Place& place = waiting_.at(ticket);
      const File& file = files_.at(place.ino);
      const std::vector<LockOwner> blockers = Blockers(file, file.waiting.at(place.order).request);
      next.insert(next.end(), blockers.begin(), blockers.end());
    }
  }
  return false;
}

// A lock makes two ranges more at most, an unlock one.
Status LockTable::CheckRoom(const File& file, const LockRequest& request) const {
  const auto count = counts_.find(request.owner.holder);
  if (count == counts_.end() || count->second.locks + 2 <= kMostLocks) {
    return Status::Ok();
  }
  const auto held = file.held.find(request.owner);
  const bool grows =
      request.type != LockType::kUnlock || (held != file.held.end() && held->second.Splits(request.start, request.end));
  return grows ? Status::Error(ENOLCK, "too many locks of one client") : Status::Ok();
}

uint64_t LockTable::Carry(File& file, const LockRequest& request) {
  LockRanges& held = file.held[request.owner];
  Count& count = counts_[request.owner.holder];
  const size_t before = held.all().size();
  held.Set(request.start, request.end, request.type, request.pid);
  const size_t after = held.all().size();
  locks_ += after - before;
  count.locks += after - before;
  if (held.empty()) {
    file.held.erase(request.owner);
    file.closes.erase(request.owner);
  }
  if (count.locks == 0 && count.waits == 0) {
    counts_.erase(request.owner.holder);
  }
  return ++changes_;
}

void LockTable::Serve(File& file, Tickets& granted) {
  // A lock that is granted may make room for one before it: it may replace a write lock by one for reading.
  for (bool changed = true; changed;) {
    changed = false;
    for (auto waiter = file.waiting.begin(); waiter != file.waiting.end();) {
      const auto next = std::next(waiter);
      const LockRequest request = waiter->second.request;
      if (!Blocked(file, request) && CheckRoom(file, request).ok()) {
        const LockTicket ticket = waiter->second.ticket;
        Dequeue(file, waiter);
        granted_[ticket] = {request.owner.holder, Carry(file, request)};
        granted.push_back(ticket);
        changed = true;
      }
      waiter = next;
    }
  }
}

void LockTable::Enqueue(File& file, const LockRequest& request, LockTicket ticket) {
  const uint64_t order = next_order_++;
  file.waiting[order] = {request, ticket};
  waiting_[ticket] = {request.ino, order};
  waits_of_[request.owner].insert(ticket);
  counts_[request.owner.holder].waits++;
}

void LockTable::Dequeue(File& file, std::map<uint64_t, Waiter>::iterator waiter) {
  const LockOwner owner = waiter->second.request.owner;
  const auto waits = waits_of_.find(owner);
  waits->second.erase(waiter->second.ticket);
  if (waits->second.empty()) {
    waits_of_.erase(waits);
  }
  waiting_.erase(waiter->second.ticket);
  file.waiting.erase(waiter);
}

void LockTable::EndWait(LockHolder holder) {
  const auto count = counts_.find(holder);
  if (--count->second.waits == 0 && count->second.locks == 0) {
    counts_.erase(count);
  }
}

LockTable::Files::iterator LockTable::Forget(Files::iterator file) {
  return file->second.held.empty() && file->second.waiting.empty() ? files_.erase(file) : std::next(file);
}

Result<LockTable::Answer> LockTable::Apply(const LockRequest& request, LockTicket ticket, Tickets& granted) {
  if (const auto ended = granted_.find(ticket); ticket.number != 0 && ended != granted_.end()) {
    const auto [holder, change] = ended->second;
    granted_.erase(ended);
    EndWait(holder);
    return Answer{State::kDone, change};
  }
  if (ticket.number != 0 && waiting_.contains(ticket)) {
    return Answer{State::kQueued, 0};
  }
  const auto place = files_.try_emplace(request.ino).first;
  File& file = place->second;
  const auto apply = [&]() -> Result<Answer> {
    RETURN_IF_ERROR(CheckRoom(file, request));
    uint64_t given_up = 0;
    if (const auto held = file.held.find(request.owner); request.owner.flock && held != file.held.end()) {
      if (held->second.all().front().write == (request.type == LockType::kWrite) && request.type != LockType::kUnlock) {
        return Answer{State::kDone, ++changes_};
      }
      LockRequest whole = request;
      whole.type = LockType::kUnlock;
      given_up = Carry(file, whole);
    }
    if (!Blocked(file, request)) {
      const uint64_t change = Carry(file, request);
      Serve(file, granted);
      return Answer{State::kDone, change};
    }
    if (given_up != 0) {
      Serve(file, granted);
    }
    if (ticket.number == 0) {
      return Answer{State::kRefused, given_up};
    }
    if (!request.owner.flock && Deadlocks(request)) {
      return Status::Error(EDEADLK, "to wait for this lock would never end");
    }
    const auto count = counts_.find(request.owner.holder);
    if (count != counts_.end() && count->second.waits >= kMostWaits) {
      return Status::Error(ENOLCK, "too many locks that one client waits for");
    }
    Enqueue(file, request, ticket);
    return Answer{State::kQueued, given_up};
  };
  auto answer = apply();
  Forget(place);
  return answer;
}

bool LockTable::Cancel(LockTicket ticket) {
  if (granted_.contains(ticket)) {
    return false;
  }
  if (const auto place = waiting_.find(ticket); place != waiting_.end()) {
    const auto file = files_.find(place->second.ino);
    const auto waiter = file->second.waiting.find(place->second.order);
    const LockHolder holder = waiter->second.request.owner.holder;
    Dequeue(file->second, waiter);
    EndWait(holder);
    Forget(file);
  }
  return true;
}

bool LockTable::DropOwners(LockHolder holder, File& file) {
  bool any = false;
  for (auto held = file.held.lower_bound({.holder = holder});
       held != file.held.end() && held->first.holder == holder;) {
    const LockOwner owner = (held++)->first;
    Carry(file, {.ino = 0, .owner = owner, .type = LockType::kUnlock});
    any = true;
  }
  return any;
}

std::vector<uint64_t> LockTable::FilesOf(LockHolder holder) const {
  std::vector<uint64_t> files;
  for (const auto& [ino, file] : files_) {
    const auto held = file.held.lower_bound({.holder = holder});
    if (held != file.held.end() && held->first.holder == holder) {
      files.push_back(ino);
    }
  }
  return files;
}

void LockTable::DropFile(LockHolder holder, uint64_t ino, Tickets& granted) {
  const auto file = files_.find(ino);
  if (file == files_.end()) {
    return;
  }
  std::map<uint64_t, Waiter>& waiting = file->second.waiting;
  for (auto waiter = waiting.begin(); waiter != waiting.end();) {
    const auto next = std::next(waiter);
    if (waiter->second.request.owner.holder == holder) {
      Dequeue(file->second, waiter);
      EndWait(holder);
    }
    waiter = next;
  }
  DropOwners(holder, file->second);
  Serve(file->second, granted);
  Forget(file);
}

void LockTable::DropHolder(LockHolder holder, Tickets& granted) { Replace(holder, {}, granted); }

std::vector<uint64_t> LockTable::Replace(LockHolder holder, const std::vector<LockRequest>& locks, Tickets& granted) {
  std::vector<uint64_t> lost;
  std::set<uint64_t> touched;
  if (const auto count = counts_.find(holder); count != counts_.end() && count->second.locks > 0) {
    for (auto& [ino, file] : files_) {
      if (DropOwners(holder, file)) {
        touched.insert(ino);
      }
    }
  }
  for (const LockRequest& lock : locks) {
    File& file = files_[lock.ino];
    touched.insert(lock.ino);
    if (!Blocked(file, lock) && CheckRoom(file, lock).ok()) {
      Carry(file, lock);
    } else {
      lost.push_back(lock.ino);
    }
  }
  std::sort(lost.begin(), lost.end());
  lost.erase(std::unique(lost.begin(), lost.end()), lost.end());
  for (const uint64_t ino : lost) {
    DropOwners(holder, files_[ino]);
  }
  for (const uint64_t ino : touched) {
    const auto file = files_.find(ino);
    Serve(file->second, granted);
    Forget(file);
  }
  return lost;
}

void LockTable::DropWaits(uint64_t session) {
  const LockTicket first{session, 0};
  const auto is_its = [&](const auto& entry) { return entry->first.session == session; };
  for (auto wait = waiting_.lower_bound(first); wait != waiting_.end() && is_its(wait);) {
    Cancel((wait++)->first);
  }
  for (auto ended = granted_.lower_bound(first); ended != granted_.end() && is_its(ended);) {
    EndWait(ended->second.holder);
    ended = granted_.erase(ended);
  }
}

}  // namespace termfs::fs::server
