// SPDX-License-Identifier: Apache-2.0
#include "fs/server/coherence.h"

#include <algorithm>
#include <iterator>
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
                     MetricsRegistry& metrics, uint64_t last_ticket)
    : sessions_(sessions),
      clients_(clients),
      timeouts_(timeouts),
      revocations_(metrics.counter("fs_revocations_total")),
      invalidations_(metrics.counter("fs_invalidations_total")),
      expulsions_(metrics.counter("fs_expulsions_total")),
      recalls_(metrics.counter("fs_recalls_total")),
      first_writes_asked_(metrics.counter("fs_first_writes_asked_total")),
      grants_(clock, timeouts.lease + timeouts.drift, kMostGrants),
      next_ticket_(last_ticket + 1) {}

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
  if (inode.map_in_doubt) [[unlikely]] {
    const std::shared_ptr<Session> kept = sessions_.Find(keep);
    inode.map_in_doubt = kept != nullptr && kept->expelled;
  }
  return Status::Ok();
}

void Coherence::RevokeOwn(Inode& inode, uint64_t session) {
  RevokeBody body{.ino = inode.ino};
  {
    MutexLock lock(inode.mutex);
    if (!inode.grants.contains(session)) {
      return;
    }
    inode.frozen = true;
    body.version = inode.version;
  }
  revocations_.Add();
  const auto reply = CallClient(session, kFsRevoke, AsBytes(body), timeouts_.revoke);
  if (!reply.ok()) {
    BeginExpel(session, "it did not give up an extent map in time");
    MutexLock lock(inode.mutex);
    inode.map_in_doubt = true;  // until it has gone
    return;
  }
  MutexLock lock(inode.mutex);
  inode.grants.erase(session);
}

Status Coherence::RevokeOne(uint64_t session, const RevokeBody& body) {
  revocations_.Add();
  const auto reply = CallClient(session, kFsRevoke, AsBytes(body), timeouts_.revoke);
  return reply.ok() ? Status::Ok() : Expel(session, "it did not give up an extent map in time");
}

std::vector<PageHolder> Coherence::HoldersOf(Inode& inode, uint64_t writer) {
  std::vector<PageHolder> holders;
  std::vector<PageHolder> earlier;  // that have no pages now
  {
    MutexLock lock(inode.mutex);
    for (const auto& [session, opener] : inode.opens) {
      if (session != writer && opener.leases + (opener.caches ? 1 : 0) > 0) {
        (opener.caches ? holders : earlier)
            .push_back({.session = session, .pages = opener.caches, .leases = opener.leases});
      }
    }
  }
  const bool any_left = any_left_.load();  // after the openers: it has one of the two
  if (holders.empty() && earlier.empty() && !any_left) [[likely]] {
    return holders;
  }
  std::vector<GrantTable::Holder> granted;
  grants_.FindHolders(GrantKey::Attributes(inode.ino), writer, granted);
  for (std::vector<PageHolder>* const group : {&holders, &earlier}) {
    for (PageHolder& holder : *group) {
      std::copy_if(granted.begin(), granted.end(), std::back_inserter(holder.attributes),
                   [&](const GrantTable::Holder& grant) { return grant.session == holder.session; });
    }
  }
  std::copy_if(earlier.begin(), earlier.end(), std::back_inserter(holders),
               [](const PageHolder& holder) { return !holder.attributes.empty(); });
  if (any_left) {
    KeepLeft(writer, granted);
    for (const GrantTable::Holder& grant : granted) {
      const bool known = std::any_of(holders.begin(), holders.end(), [&](const PageHolder& holder) {
        return holder.session == grant.session;  // its opener is about to go
      });
      if (!known) {
        holders.push_back({.session = grant.session, .attributes = {grant}});
      }
    }
  }
  return holders;
}

void Coherence::DropPages(Inode& inode, const std::vector<PageHolder>& holders) {
  std::map<uint64_t, const PageHolder*> by_session;
  std::vector<uint64_t> sessions;
  for (const PageHolder& holder : holders) {
    sessions.push_back(holder.session);
    by_session[holder.session] = &holder;
  }
  const Status done = ForEach(sessions, [&](uint64_t session) {
    const PageHolder& holder = *by_session.at(session);
    if (holder.pages) {
      return DropPagesOf(inode, session, holder.attributes);
    }
    // Attributes alone: a kernel that is asked to drop pages waits for those that are being read. But its mount may
    // wait for a read, too, before it tells the kernel; so who reads there gets a lease meanwhile, as in DropPagesOf.
    Recalled recalled{.message = {}, .grants = holder.attributes};
    recalled.message.inodes.push_back(inode.ino);
    uint64_t number = 0;
    RecallOne(session, recalled, [&](uint64_t ticket) { AddDrop(inode, session, number = ticket); });
    EndDrop(inode, session, number);
    return Status::Ok();
  });
  if (!done.ok()) {
    LOG_WARNING("pages of inode {}: {}", inode.ino, done.ToDebugString());
  }
  MutexLock lock(inode.mutex);
  for (const PageHolder& holder : holders) {
    const auto opener = inode.opens.find(holder.session);
    if (holder.pages && opener != inode.opens.end() && opener->second.leases == holder.leases) {
      opener->second.caches = false;
    }
  }
}

void Coherence::TellShrunk(Inode& inode, const std::vector<uint64_t>& sessions, uint64_t generation) {
  const Status done = ForEach(sessions, [&](uint64_t session) {
    uint64_t number = 0;
    // To take over the size a kernel waits for pages that are being read: who reads there waits for no change.
    const auto encode = [&](uint64_t ticket) {
      AddDrop(inode, session, number = ticket);
      const ShrunkBody body{.ticket = ticket, .ino = inode.ino, .generation = generation};
      const auto bytes = AsBytes(body);
      return std::vector<std::byte>(bytes.begin(), bytes.end());
    };
    if (sessions_.Find(session) == nullptr) {
      return Status::Ok();
    }
    const Reply answer = CallAndWait(session, kFsShrunk, encode, timeouts_.invalidate);
    EndDrop(inode, session, number);
    return answer != Reply::kNone ? Status::Ok() : Expel(session, "its kernel did not take a smaller size in time");
  });
  if (!done.ok()) {
    LOG_WARNING("the size of inode {}: {}", inode.ino, done.ToDebugString());
  }
}

void Coherence::AddDrop(Inode& inode, uint64_t session, uint64_t ticket) {
  MutexLock lock(inode.mutex);
  if (const auto opener = inode.opens.find(session); opener != inode.opens.end()) {
    opener->second.drops.push_back(ticket);
    inode.change_entered.NotifyAll();
  }
}

void Coherence::EndDrop(Inode& inode, uint64_t session, uint64_t ticket) {
  MutexLock lock(inode.mutex);
  if (const auto opener = inode.opens.find(session); opener != inode.opens.end()) {
    std::erase(opener->second.drops, ticket);
  }
}

Coherence::Reply Coherence::AskToDrop(Inode& inode, uint64_t session) {
  invalidations_.Add();
  uint64_t number = 0;
  const auto encode = [&](uint64_t ticket) {
    AddDrop(inode, session, number = ticket);
    const InvalidateBody body{.ticket = ticket, .ino = inode.ino};
    const auto bytes = AsBytes(body);
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  const Reply answer = CallAndWait(session, kFsInvalidate, encode, timeouts_.invalidate);
  EndDrop(inode, session, number);
  return answer;
}

bool Coherence::MayHavePages(Inode& inode, uint64_t session) {
  MutexLock lock(inode.mutex);
  const auto opener = inode.opens.find(session);
  return opener != inode.opens.end() && opener->second.caches;
}

Status Coherence::DropOwnPages(Inode& inode, uint64_t session) {
  uint64_t leases = 0;
  {
    MutexLock lock(inode.mutex);
    const auto opener = inode.opens.find(session);
    if (opener == inode.opens.end() || !opener->second.caches) {
      return Status::Ok();
    }
    leases = opener->second.leases;
  }
  if (AskToDrop(inode, session) == Reply::kNone) {
    BeginExpel(session, "its kernel did not drop cached pages in time");
    return Status::Error(ECANCELED, "the session is gone");
  }
  MutexLock lock(inode.mutex);
  const auto opener = inode.opens.find(session);
  if (opener != inode.opens.end() && opener->second.leases == leases) {
    opener->second.caches = false;
  }
  return Status::Ok();
}

Status Coherence::DropPagesOf(Inode& inode, uint64_t session, const std::vector<GrantTable::Holder>& attributes) {
  const Reply answer = AskToDrop(inode, session);
  Status gone = answer != Reply::kNone ? Status::Ok() : Expel(session, "its kernel did not drop cached pages in time");
  if (answer != Reply::kDone) {
    AwaitEndOf(session, attributes);
  }
  grants_.Remove(attributes);
  return gone;
}

Coherence::Reply Coherence::CallAndWait(uint64_t session, Opcode opcode,
                                        const std::function<std::vector<std::byte>(uint64_t)>& encode,
                                        std::chrono::milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  uint64_t number;
  {
    MutexLock lock(mutex_);
    number = next_ticket_++;
    tickets_[number] = {.session = session};
  }
  const auto reply = CallClient(session, opcode, encode(number), timeout);
  MutexLock lock(mutex_);
  while (reply.ok() && tickets_[number].reply == Reply::kNone && steady_clock::now() < deadline) {
    acknowledged_.WaitUntil(mutex_, deadline);
  }
  const Reply answer = tickets_[number].reply;
  tickets_.erase(number);
  return answer;
}

Newborns::Sessions::Answer Coherence::AskFirstWrite(uint64_t session, uint64_t ino, const Newborns::Asker& asker) {
  first_writes_asked_.Add();
  const FirstWriteBody body{.ino = ino};
  const auto reply = CallClient(session, kFsFirstWrite, AsBytes(body), timeouts_.revoke);
  const auto decoded = reply.ok() ? DecodeFixed<FirstWriteReply>(*reply) : reply.status();
  if (decoded.ok()) {
    return decoded->first == static_cast<uint32_t>(FirstWrite::kPosted) ? Answer::kPosted : Answer::kForgone;
  }
  ExpelForFirstWrite(session, asker);
  return Answer::kGone;
}

void Coherence::ExpelForFirstWrite(uint64_t session, const Newborns::Asker& asker) {
  if (!BeginExpel(session, "it did not say in time what it writes to files that it has made") ||
      session == asker.session) {
    return;
  }
  const Status gone = sessions_.WaitUntilGone(session, steady_clock::now() + timeouts_.expel, asker.expelled);
  if (!gone.ok()) {
    LOG_WARNING("session {}: {}", session, gone.ToDebugString());
  }
}

bool Coherence::TellFailedWrite(uint64_t session, uint64_t ino) {
  const FirstWriteBody body{.ino = ino, .failed = 1};
  const bool told = CallClient(session, kFsFirstWrite, AsBytes(body), timeouts_.revoke).ok();
  if (!told) {
    ExpelForFirstWrite(session, {.session = session});  // the caller is one of its requests
  }
  return told;
}

Status Coherence::Acknowledge(uint64_t session, uint64_t ticket) {
  MutexLock lock(mutex_);
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end() || found->second.session != session) {
    return Status::Error(ENOENT, "no such ticket");
  }
  found->second.reply = Reply::kDone;
  acknowledged_.NotifyAll();
  return Status::Ok();
}

Result<std::vector<std::byte>> Coherence::CallClient(uint64_t session, Opcode opcode, std::span<const std::byte> body,
                                                     std::chrono::milliseconds timeout) {
  auto reply = server().CallClient({session}, opcode, body, timeout);
  if (reply.status().code() != ENOTCONN) {
    return reply;
  }
  // Its requests that wait give up, as when it is expelled.
  const std::shared_ptr<Session> known = sessions_.Find(session);
  if (known != nullptr && !known->expelled.exchange(true)) {
    server().Lose({session}, reply.status().ToString());
  }
  return reply;
}

bool Coherence::BeginExpel(uint64_t session, const char* why) {
  // Requests of it that wait at a gate give up, or they and who waits for its end would wait for one another.
  const std::shared_ptr<Session> known = sessions_.Find(session);
  if (known == nullptr) {
    return false;
  }
  if (!known->expelled.exchange(true)) {
    expulsions_.Add();
    LOG_WARNING("session {} is expelled: {}", session, why);
    server().Expel({session}, why);
  }
  return true;
}

Status Coherence::Expel(uint64_t session, const char* why) {
  if (!BeginExpel(session, why)) {
    return Status::Ok();
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
