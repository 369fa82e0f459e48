// SPDX-License-Identifier: Apache-2.0
//
// Locks of files. Nobody waits here: who has to is told so, noted in the table, and called when the lock is its own;
// it then asks again. So a wait holds no worker and no call, and a call that is lost costs a moment.
#include <algorithm>

#include "base/log.h"
#include "fs/proto/codec.h"
#include "fs/proto/lock_closes.h"
#include "fs/server/service.h"

namespace termfs::fs::server {

namespace {

constexpr std::chrono::milliseconds kCallPatience{3000};
constexpr size_t kMostNamed = 256;  // files in a reply, owners in a request

Result<LockRequest> RequestOf(const wire::LockT& body, LockHolder holder) {
  if (body.type > static_cast<uint8_t>(LockType::kUnlock) || body.start > body.end || body.end > kLastLockByte) {
    return Status::Error(EINVAL, "no such lock");
  }
  if (body.flock && (body.start != 0 || body.end != kLastLockByte)) {
    return Status::Error(EINVAL, "flock is about whole files");
  }
  return LockRequest{.ino = body.ino,
                     .owner = {.holder = holder, .flock = body.flock, .id = body.owner},
                     .type = static_cast<LockType>(body.type),
                     .start = body.start,
                     .end = body.end,
                     .pid = body.pid};
}

Bytes EncodeLocked(wire::LockState state, uint64_t change) {
  wire::LockedT reply;
  reply.state = state;
  reply.change = change;
  return Encode<wire::Locked>(reply);
}

wire::LockState ToWire(LockTable::State state) {
  switch (state) {
    case LockTable::State::kDone:
      return wire::LockState::Done;
    case LockTable::State::kQueued:
      return wire::LockState::Queued;
    case LockTable::State::kRefused:
      break;
  }
  return wire::LockState::Refused;
}

}  // namespace

LockHolder FileService::HolderOf(const Session& session) {
  return session.client != 0 ? LockHolder{.client = session.client} : LockHolder{.session = session.id};
}

Result<Bytes> FileService::Lock(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Lock>(request.call.body()));
  if (body.type == kLockCloses) {
    MutexLock lock(locks_mutex_);
    locks_.Closes(body.ino, {.holder = HolderOf(request.session), .flock = body.flock, .id = body.owner},
                  options_.clock.Now());
    return EncodeLocked(wire::LockState::Done, 0);
  }
  ASSIGN_OR_RETURN(const LockRequest wanted, RequestOf(body, HolderOf(request.session)));
  if (wanted.type != LockType::kUnlock) {
    RETURN_IF_ERROR(FindOpenNow(request, wanted.ino).status());
    if (clients_.AnyLocks()) {
      return EncodeLocked(wire::LockState::Later, 0);
    }
  }
  LockTable::Tickets granted;
  bool may_end = false;
  const auto answer = [&] {
    MutexLock lock(locks_mutex_);
    auto applied = locks_.Apply(wanted, {request.session.id, body.ticket}, granted);
    may_end =
        applied.ok() && applied->state == LockTable::State::kRefused && locks_.MayEnd(wanted, options_.clock.Now());
    return applied;
  }();
  TellGranted(granted);
  RETURN_IF_ERROR(answer.status());
  return EncodeLocked(may_end ? wire::LockState::Later : ToWire(answer->state), answer->change);
}

Result<Bytes> FileService::TestLock(const Request& request) {
  ASSIGN_OR_RETURN(auto body, Decode<wire::Lock>(request.call.body()));
  ASSIGN_OR_RETURN(const LockRequest wanted, RequestOf(body, HolderOf(request.session)));
  RETURN_IF_ERROR(FindOpenNow(request, wanted.ino).status());
  body.later = clients_.AnyLocks();
  if (body.later) {
    return Encode<wire::Lock>(body);
  }
  MutexLock lock(locks_mutex_);
  body.later = locks_.MayEnd(wanted, options_.clock.Now());
  const auto held = locks_.Test(wanted);
  body.type = static_cast<uint8_t>(!held ? LockType::kUnlock : held->range.write ? LockType::kWrite : LockType::kRead);
  if (held) {
    body.start = held->range.start;
    body.end = held->range.end;
    body.pid = held->range.pid;
  }
  return Encode<wire::Lock>(body);
}

Result<Bytes> FileService::CancelLock(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Ticket>(request.call.body()));
  MutexLock lock(locks_mutex_);
  if (locks_.Cancel({request.session.id, body.ticket})) {
    return Status::Error(ENOENT, "it does not wait any more");
  }
  return Bytes{};
}

Result<Bytes> FileService::Reclaim(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Reclaim>(request.call.body()));
  if (clients_.HasResumed(request.session.client)) {
    return Status::Error(EINVAL, "locks are said before what is open has been");
  }
  clients_.Resuming(request.session.client);
  std::vector<LockRequest> part;
  for (const auto& lock : body.locks) {
    ASSIGN_OR_RETURN(const LockRequest wanted, RequestOf(*lock, HolderOf(request.session)));
    part.push_back(wanted);
  }
  std::vector<uint64_t> lost;
  LockTable::Tickets granted;
  {
    MutexLock lock(locks_mutex_);
    std::vector<LockRequest>& all = reclaimed_[request.session.id];
    if (all.size() + part.size() > LockTable::kMostLocks) {
      return Status::Error(ENOLCK, "too many locks of one client");
    }
    all.insert(all.end(), part.begin(), part.end());
    if (!body.last) {
      return Encode<wire::Reclaimed>({});
    }
    if (request.session.may_reclaim) {
      lost = locks_.Replace(HolderOf(request.session), all, granted);
    } else {
      std::transform(all.begin(), all.end(), std::back_inserter(lost), [](const LockRequest& l) { return l.ino; });
    }
    all.clear();
  }
  TellGranted(granted);
  std::sort(lost.begin(), lost.end());
  lost.erase(std::unique(lost.begin(), lost.end()), lost.end());
  wire::ReclaimedT reply;
  reply.all_lost = lost.size() > kMostNamed;
  if (reply.all_lost) {
    DropLocks(HolderOf(request.session));
  } else {
    reply.lost = std::move(lost);
  }
  return Encode<wire::Reclaimed>(reply);
}

void FileService::EndLockSession(const Session& session, bool keep) {
  LockTable::Tickets granted;
  {
    MutexLock lock(locks_mutex_);
    reclaimed_.erase(session.id);
    locks_.DropWaits(session.id);
    if (!keep) {
      locks_.DropHolder(HolderOf(session), granted);
    }
  }
  TellGranted(granted);
}

void FileService::BeginLockSession(const Request& request) {
  if (clients_.HasResumed(request.session.client)) {
    return;
  }
  LockTable::Tickets granted;
  std::vector<uint64_t> locked;
  {
    MutexLock lock(locks_mutex_);
    if (reclaimed_.erase(request.session.id) == 0) {
      locks_.DropHolder(HolderOf(request.session), granted);  // it says that it has none
    }
    locked = locks_.FilesOf(HolderOf(request.session));
  }
  for (const uint64_t ino : locked) {
    if (!FindOpenNow(request, ino).ok()) {
      DropLocksOf(request.session, ino, granted);
    }
  }
  TellGranted(granted);
}

void FileService::DropLocks(LockHolder holder) {
  LockTable::Tickets granted;
  {
    MutexLock lock(locks_mutex_);
    locks_.DropHolder(holder, granted);
  }
  TellGranted(granted);
}

void FileService::DropLocksOf(const Session& session, uint64_t ino, LockTable::Tickets& granted) {
  MutexLock lock(locks_mutex_);
  locks_.DropFile(HolderOf(session), ino, granted);
}

Status FileService::ReleaseOwners(const Session& session, const wire::ReleaseT& body) {
  if (body.record_owners.size() > kMostNamed || body.flock_owners.size() > kMostNamed) {
    return Status::Error(EINVAL, "too many owners");
  }
  LockTable::Tickets granted;
  {
    MutexLock lock(locks_mutex_);
    for (const bool flock : {false, true}) {
      for (const uint64_t owner : flock ? body.flock_owners : body.record_owners) {
        const LockRequest unlock{.ino = body.ino,
                                 .owner = {.holder = HolderOf(session), .flock = flock, .id = owner},
                                 .type = LockType::kUnlock};
        [[maybe_unused]] const auto done = locks_.Apply(unlock, {}, granted);  // all of it: never one range more
      }
    }
  }
  TellGranted(granted);
  return Status::Ok();
}

// One task for each session, so that one that hangs delays nobody else. Who is not reached asks by itself in time.
void FileService::TellGranted(const LockTable::Tickets& granted) {
  std::map<uint64_t, std::vector<uint64_t>> by_session;
  for (const LockTicket& ticket : granted) {
    by_session[ticket.session].push_back(ticket.number);
  }
  for (auto& [session, tickets] : by_session) {
    SpawnBackground([this, id = session, numbers = std::move(tickets)] {
      for (const uint64_t number : numbers) {
        wire::TicketT body;
        body.ticket = number;
        if (!server_.load(std::memory_order_acquire)
                 ->CallClient({id}, kFsLockGranted, Encode<wire::Ticket>(body), kCallPatience)
                 .ok()) {
          return;
        }
      }
    });
  }
}

}  // namespace termfs::fs::server
