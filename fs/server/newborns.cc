// SPDX-License-Identifier: Apache-2.0
#include "fs/server/newborns.h"

#include <algorithm>
#include <map>

#include "base/log.h"

namespace termfs::fs::server {

using std::chrono::steady_clock;

namespace {
constexpr std::chrono::milliseconds kLookAgain{100};  // whether it is expelled
}

bool Newborns::Add(uint64_t ino, uint64_t session, uint64_t client) {
  MutexLock lock(mutex_);
  if (newborns_.size() >= kMost) {
    return false;
  }
  newborns_[ino] = {.session = session, .client = client};
  count_.store(newborns_.size());
  return true;
}

void Newborns::Erase(Table::iterator newborn) {
  newborns_.erase(newborn);
  count_.store(newborns_.size());
  changed_.NotifyAll();
}

bool Newborns::Has(uint64_t ino) {
  if (!any()) {
    return false;
  }
  MutexLock lock(mutex_);
  const auto found = newborns_.find(ino);
  return found != newborns_.end() && found->second.state != State::kFenced;
}

void Newborns::Forgo(uint64_t ino, uint64_t session) {
  if (!any()) {
    return;
  }
  MutexLock lock(mutex_);
  const auto found = newborns_.find(ino);
  if (found != newborns_.end() && found->second.session == session && found->second.state != State::kArrived) {
    Erase(found);
  }
}

Status Newborns::AwaitPosted(uint64_t ino, const Asker& asker) {
  if (!any()) {
    return Status::Ok();
  }
  {
    MutexLock lock(mutex_);
    const auto found = newborns_.find(ino);
    if (found != newborns_.end() && found->second.session == asker.session && found->second.state == State::kFresh) {
      found->second.state = State::kAwaited;
      found->second.until = steady_clock::now() + post_;
    }
  }
  return Settle(ino, asker);
}

bool Newborns::Arrived(uint64_t ino, uint64_t session, uint64_t client) {
  MutexLock lock(mutex_);
  const auto found = newborns_.find(ino);
  if (found == newborns_.end()) {
    return false;
  }
  Newborn& newborn = found->second;
  const bool returned = newborn.away && newborn.client == client;
  if (newborn.state == State::kArrived || newborn.state == State::kFenced ||
      (newborn.session != session && !returned)) {
    return false;
  }
  newborn.session = session;
  newborn.away = false;
  newborn.state = State::kArrived;
  return true;
}

bool Newborns::ArrivedLate(uint64_t ino, uint64_t session, uint64_t client) {
  MutexLock lock(mutex_);
  const auto [added, is_new] = newborns_.try_emplace(ino, Newborn{.session = session, .client = client});
  if (is_new) {
    added->second.state = State::kArrived;
    count_.store(newborns_.size());
  }
  return is_new;
}

void Newborns::Done(uint64_t ino, Outcome outcome) {
  MutexLock lock(mutex_);
  const auto found = newborns_.find(ino);
  if (found == newborns_.end()) {
    return;
  }
  Newborn& newborn = found->second;
  if (outcome == Outcome::kSettled || !newborn.returns) {
    return Erase(found);
  }
  newborn.state = State::kAwaited;
  newborn.until = std::max(newborn.until, steady_clock::now() + post_);
  changed_.NotifyAll();
}

Status Newborns::Settle(uint64_t ino, const Asker& asker) {
  while (Step(ino, asker)) {
    if (asker.is_expelled()) {
      return Status::Error(ECANCELED, "the session is gone");
    }
  }
  return Status::Ok();
}

Status Newborns::SettleAll(const Asker& asker) {
  std::map<uint64_t, std::vector<uint64_t>> by_session;
  {
    MutexLock lock(mutex_);
    for (const auto& [ino, newborn] : newborns_) {
      by_session[newborn.session].push_back(ino);
    }
  }
  for (const auto& [session, inodes] : by_session) {
    const auto patience = steady_clock::now() + 2 * post_;
    bool expelled = false;
    for (const uint64_t ino : inodes) {
      if (!expelled && steady_clock::now() >= patience) {
        expelled = true;
        sessions_.ExpelForFirstWrite(session, asker);
      }
      RETURN_IF_ERROR(Settle(ino, asker));
    }
  }
  return Status::Ok();
}

bool Newborns::Step(uint64_t ino, const Asker& asker) {
  uint64_t session = 0;
  bool asks = false;
  {
    MutexLock lock(mutex_);
    const auto found = newborns_.find(ino);
    if (found == newborns_.end() || found->second.state == State::kFenced) {
      return false;
    }
    Newborn& newborn = found->second;
    const auto now = steady_clock::now();
    const bool over = now >= newborn.until;
    if (newborn.away && newborn.state != State::kArrived && over) {
      LOG_WARNING("inode {}: its client has not come back to say whether it has written to it; it cannot any more",
                  ino);
      newborn.state = State::kFenced;
      changed_.NotifyAll();
      return false;
    }
    asks = newborn.state == State::kFresh && !newborn.away;
    const bool expels = newborn.state == State::kAwaited && !newborn.away && over;
    if (!asks && !expels) {
      changed_.WaitUntil(mutex_, newborn.until > now ? std::min(newborn.until, now + kLookAgain) : now + kLookAgain);
      return true;
    }
    session = newborn.session;
    if (asks) {
      newborn.state = State::kAsking;
    }
  }
  Sessions::Answer answer = Sessions::Answer::kGone;
  if (asks) {
    answer = sessions_.AskFirstWrite(session, ino, asker);
  } else {
    sessions_.ExpelForFirstWrite(session, asker);
  }
  MutexLock lock(mutex_);
  const auto found = newborns_.find(ino);
  if (found == newborns_.end() || found->second.session != session) {
    return true;
  }
  Newborn& newborn = found->second;
  if (answer == Sessions::Answer::kGone) {
    if (!newborn.away) {
      newborn.away = true;
      newborn.until = steady_clock::now() + absence_;
    }
    newborn.state = newborn.state == State::kAsking ? State::kFresh : newborn.state;
  } else if (newborn.state == State::kAsking) {
    if (answer == Sessions::Answer::kForgone) {
      Erase(found);
      return true;
    }
    newborn.state = State::kAwaited;
    newborn.until = newborn.away ? newborn.until : steady_clock::now() + post_;
  }
  changed_.NotifyAll();
  return true;
}

void Newborns::SessionClosed(uint64_t session, bool returns) {
  MutexLock lock(mutex_);
  for (auto newborn = newborns_.begin(); newborn != newborns_.end();) {
    const auto current = newborn++;
    if (current->second.session != session) {
      continue;
    }
    current->second.returns = returns;
    if (!returns && current->second.state != State::kArrived) {
      newborns_.erase(current);
      continue;
    }
    current->second.away = true;
    current->second.until = steady_clock::now() + absence_;
  }
  count_.store(newborns_.size());
  changed_.NotifyAll();
}

void Newborns::ClientSettled(uint64_t client, uint64_t session) {
  MutexLock lock(mutex_);
  std::erase_if(newborns_, [&](const auto& entry) {
    const Newborn& newborn = entry.second;
    return newborn.client == client && newborn.session != session && newborn.state != State::kArrived;
  });
  count_.store(newborns_.size());
  changed_.NotifyAll();
}

}  // namespace termfs::fs::server
