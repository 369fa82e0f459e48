// SPDX-License-Identifier: Apache-2.0
#include "fs/server/coherence.h"

#include <memory>

#include "base/log.h"
#include "fs/proto/opcodes.h"

namespace termfs::fs::server {

using std::chrono::steady_clock;
using tlib::server::SessionId;

namespace {
constexpr size_t kMostGrants = size_t{1} << 18;  // about 40 MiB
}

Coherence::Coherence(SessionTable& sessions, Clients& clients, const Clock& clock, const CoherenceTimeouts& timeouts,
                     MetricsRegistry& metrics)
    : sessions_(sessions),
      clients_(clients),
      timeouts_(timeouts),
      revocations_(metrics.counter("fs_revocations_total")),
      invalidations_(metrics.counter("fs_invalidations_total")),
      expulsions_(metrics.counter("fs_expulsions_total")),
      recalls_(metrics.counter("fs_recalls_total")),
      grants_(clock, timeouts.lease + timeouts.drift, kMostGrants) {}

Status Coherence::Revoke(Inode& inode, uint64_t keep) {
  std::vector<uint64_t> holders;
  RevokeBody body{.ino = inode.ino};
  {
    MutexLock lock(inode.mutex);
    inode.frozen = true;
    body.version = inode.version;
    for (const auto& [session, version] : inode.grants) {
      if (session != keep) {
        holders.push_back(session);
      }
    }
  }
  RETURN_IF_ERROR(ForEach(holders, [&](uint64_t session) { return RevokeOne(session, body); }));
  MutexLock lock(inode.mutex);
  for (const uint64_t session : holders) {
    inode.grants.erase(session);
  }
  return Status::Ok();
}

Status Coherence::RevokeOne(uint64_t session, const RevokeBody& body) {
  revocations_.Add();
  const auto reply = server().CallClient({session}, kFsRevoke, AsBytes(body), timeouts_.revoke);
  return reply.ok() ? Status::Ok() : Expel(session, "it did not give up an extent map in time");
}

void Coherence::Invalidate(Inode& inode, uint64_t writer, uint64_t offset, uint64_t length) {
  std::vector<uint64_t> openers;
  {
    MutexLock lock(inode.mutex);
    for (const auto& [session, opener] : inode.opens) {
      if (session != writer && opener.notify) {
        openers.push_back(session);
      }
    }
  }
  const InvalidateBody body{.ticket = 0, .ino = inode.ino, .offset = offset, .length = length};
  const Status done = ForEach(openers, [&](uint64_t session) { return InvalidateOne(session, body); });
  if (!done.ok()) {
    LOG_WARNING("invalidating inode {}: {}", inode.ino, done.ToDebugString());
  }
}

Status Coherence::InvalidateOne(uint64_t session, InvalidateBody body) {
  invalidations_.Add();
  const auto encode = [&body](uint64_t ticket) {
    body.ticket = ticket;
    const auto bytes = AsBytes(body);
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  return CallAndWait(session, kFsInvalidate, encode, timeouts_.invalidate) != Answer::kNone
             ? Status::Ok()
             : Expel(session, "its kernel did not drop cached pages in time");
}

Coherence::Answer Coherence::CallAndWait(uint64_t session, Opcode opcode,
                                         const std::function<std::vector<std::byte>(uint64_t)>& encode,
                                         std::chrono::milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  uint64_t number;
  {
    MutexLock lock(mutex_);
    number = next_ticket_++;
    tickets_[number] = {.session = session};
  }
  const auto reply = server().CallClient({session}, opcode, encode(number), timeout);
  MutexLock lock(mutex_);
  while (reply.ok() && tickets_[number].answer == Answer::kNone && steady_clock::now() < deadline) {
    acknowledged_.WaitUntil(mutex_, deadline);
  }
  const Answer answer = tickets_[number].answer;
  tickets_.erase(number);
  return answer;
}

Status Coherence::Acknowledge(uint64_t session, uint64_t ticket) {
  MutexLock lock(mutex_);
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end() || found->second.session != session) {
    return Status::Error(ENOENT, "no such ticket");
  }
  found->second.answer = Answer::kDone;
  acknowledged_.NotifyAll();
  return Status::Ok();
}

Status Coherence::Expel(uint64_t session, const char* why) {
  // Requests of it that wait at a gate give up, or they and this wait would wait for one another.
  const std::shared_ptr<Session> known = sessions_.Find(session);
  if (known == nullptr) {
    return Status::Ok();
  }
  if (!known->expelled.exchange(true)) {
    expulsions_.Add();
    LOG_WARNING("session {} is expelled: {}", session, why);
    server().Expel({session}, why);
  }
  return sessions_.WaitUntilGone(session, steady_clock::now() + timeouts_.expel);
}

Status Coherence::ForEach(const std::vector<uint64_t>& sessions, const std::function<Status(uint64_t)>& one) {
  if (sessions.empty()) {
    return Status::Ok();
  }
  if (sessions.size() == 1) {
    return one(sessions.front());
  }
  struct Join {
    Mutex mutex;
    size_t left GUARDED_BY(mutex) = 0;
    Status first GUARDED_BY(mutex);
    TaskCondition ended GUARDED_BY(mutex);
  };
  const auto join = std::make_shared<Join>();
  {
    MutexLock lock(join->mutex);
    join->left = sessions.size();
  }
  // `one` and what it refers to are there until all have ended: each is bounded by its own deadlines.
  for (const uint64_t session : sessions) {
    server().Spawn([join, &one, session] {
      Status status = one(session);
      MutexLock lock(join->mutex);
      if (join->first.ok()) {
        join->first = std::move(status);
      }
      --join->left;
      join->ended.NotifyAll();
    });
  }
  MutexLock lock(join->mutex);
  while (join->left > 0) {
    join->ended.WaitUntil(join->mutex, steady_clock::now() + timeouts_.expel);
  }
  return join->first;
}

}  // namespace termfs::fs::server
