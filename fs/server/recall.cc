// SPDX-License-Identifier: Apache-2.0
//
// Coherence::Recall, and when a session that does not answer holds nothing any more. The end of a session is not that:
// the kernel of its mount goes on with what it was given until the time is over, or until the process that served it
// has ended, which ends the mount.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "base/log.h"
#include "fs/server/coherence.h"

namespace termfs::fs::server {

using std::chrono::steady_clock;

namespace {

constexpr std::chrono::milliseconds kLook{10};  // whether a process has ended

bool Ended(const UniqueFd& process) {
  pollfd ready{.fd = process.get(), .events = POLLIN, .revents = 0};
  return poll(&ready, 1, 0) > 0;
}

}  // namespace

void Coherence::Recall(uint64_t keep, std::initializer_list<uint64_t> inodes,
                       std::initializer_list<EntryName> entries) {
  AwaitEarlier();
  RecallWithoutWait(keep, inodes, entries);
}

void Coherence::AwaitEarlier() {
  while (clients_.AnyHolds()) {
    tlib::server::Task::ParkUntil(steady_clock::now() + kLook);
  }
}

void Coherence::RecallWithoutWait(uint64_t keep, std::initializer_list<uint64_t> inodes,
                                  std::initializer_list<EntryName> entries) {
  std::map<uint64_t, Recalled> by_session;
  std::vector<GrantTable::Holder> found;
  for (const uint64_t ino : inodes) {
    if (ino == 0) {
      continue;
    }
    found.clear();
    grants_.FindHolders(GrantKey::Attributes(ino), keep, found);
    for (const GrantTable::Holder& holder : found) {
      Recalled& recalled = by_session[holder.session];
      recalled.message.inodes.push_back(ino);
      recalled.grants.push_back(holder);
    }
  }
  for (const EntryName& entry : entries) {
    found.clear();
    grants_.FindHolders(GrantKey::Entry(entry.parent, entry.name), keep, found);
    for (const GrantTable::Holder& holder : found) {
      Recalled& recalled = by_session[holder.session];
      auto name = std::make_unique<wire::NameT>();
      name->parent = entry.parent;
      name->name = entry.name;
      recalled.message.entries.push_back(std::move(name));
      recalled.grants.push_back(holder);
    }
  }
  if (by_session.empty()) {
    return;
  }
  std::vector<uint64_t> sessions;
  for (const auto& [session, recalled] : by_session) {
    sessions.push_back(session);
  }
  const BootTime begin = grants_.Now();
  const Status done = ForEach(sessions, [&](uint64_t session) {
    RecallOne(session, by_session.at(session));
    return Status::Ok();
  });
  TERMFS_CHECK(done.ok());
  for (const EntryName& entry : entries) {
    contended_.NoteRecall(entry.parent, keep, begin, grants_.Now());
  }
}

void Coherence::CountAllAsHolders(uint64_t ino) {
  for (const uint64_t session : sessions_.Caching()) {
    grants_.AddAlways(GrantKey::Attributes(ino), session);
  }
}

void Coherence::RecallOne(uint64_t session, Recalled& recalled, const std::function<void(uint64_t)>& begin) {
  recalls_.Add();
  const auto encode = [&](uint64_t ticket) {
    if (begin) {
      begin(ticket);
    }
    recalled.message.ticket = ticket;
    return Encode<wire::Recall>(recalled.message);
  };
  const bool done =
      sessions_.Find(session) != nullptr && CallAndWait(session, kFsRecall, encode, timeouts_.recall) == Reply::kDone;
  if (!done && grants_.LastsAny(recalled.grants)) {
    const Status gone = Expel(session, "its kernel did not drop cached attributes or names in time");
    if (!gone.ok()) {
      LOG_WARNING("session {}: {}", session, gone.ToDebugString());
    }
    AwaitEndOf(session, recalled.grants);
  }
  grants_.Remove(recalled.grants);
}

void Coherence::AwaitEndOf(uint64_t session, const std::vector<GrantTable::Holder>& granted) {
  while (grants_.LastsAny(granted) && !ProcessIsGone(session)) {
    tlib::server::Task::ParkUntil(steady_clock::now() + kLook);
  }
}

void Coherence::KeepLeft(uint64_t writer, std::vector<GrantTable::Holder>& granted) {
  const std::shared_ptr<Session> known = sessions_.Find(writer);
  const uint64_t client = known != nullptr ? known->client : 0;
  MutexLock lock(mutex_);
  std::erase_if(granted, [&](const GrantTable::Holder& grant) REQUIRES(mutex_) {
    const auto left = left_.find(grant.session);
    return left == left_.end() || (client != 0 && left->second.client == client);
  });
}

bool Coherence::ProcessIsGone(uint64_t session) {
  MutexLock lock(mutex_);
  const auto found = processes_.find(session);
  return found != processes_.end() && Ended(found->second.handle);
}

void Coherence::Expire() {
  std::vector<uint64_t> ended;
  {
    MutexLock lock(mutex_);
    const BootTime now = grants_.Now();
    std::erase_if(processes_, [&](const auto& entry) {
      const auto& [session, process] = entry;
      if (!process.forget.has_value()) {
        return false;
      }
      if (*process.forget > now && !Ended(process.handle)) {
        return false;
      }
      ended.push_back(session);
      return true;
    });
    for (const uint64_t session : ended) {
      left_.erase(session);
    }
    std::erase_if(left_, [now](const auto& entry) { return entry.second.forget <= now; });
    any_left_ = !left_.empty();
  }
  for (const uint64_t session : ended) {
    grants_.RemoveSession(session);
  }
}

void Coherence::SessionOpened(uint64_t session, uint32_t pid) {
  MutexLock lock(mutex_);
  if (pid != 0) {
    // Without one, only time tells.
    UniqueFd handle(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0U)));
    if (handle.valid()) {
      processes_[session] = {.handle = std::move(handle), .forget = std::nullopt};
    }
  }
}

void Coherence::SessionClosed(uint64_t session, uint64_t client, bool caches) {
  if (!caches) {
    grants_.RemoveSession(session);
  }
  MutexLock lock(mutex_);
  for (auto& [number, ticket] : tickets_) {
    if (ticket.session == session && ticket.reply == Reply::kNone) {
      ticket.reply = Reply::kGone;
    }
  }
  acknowledged_.NotifyAll();
  const BootTime forget = grants_.Now() + longest_grant();
  if (caches) {
    left_[session] = {.client = client, .forget = forget};
    any_left_ = true;
  }
  const auto process = processes_.find(session);
  if (process == processes_.end()) {
    return;
  }
  if (caches) {
    process->second.forget = forget;
  } else {
    processes_.erase(process);
  }
}

void Coherence::ClientDropped(uint64_t client) {
  std::vector<uint64_t> sessions;
  {
    MutexLock lock(mutex_);
    for (const auto& [session, left] : left_) {
      if (left.client == client) {
        sessions.push_back(session);
      }
    }
    for (const uint64_t session : sessions) {
      left_.erase(session);
      processes_.erase(session);
    }
    any_left_ = !left_.empty();
  }
  for (const uint64_t session : sessions) {
    grants_.RemoveSession(session);
  }
}

}  // namespace termfs::fs::server
