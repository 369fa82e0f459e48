// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/pattern_switch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tlib/rpc/messages.h"

namespace termfs::tlib::server {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kAcknowledge{5};
constexpr std::chrono::seconds kLeave{30};
constexpr std::chrono::milliseconds kLook{5};

PatternBody ToBody(const PatternSwitch::Known& known) {
  PatternBody body;
  std::memcpy(body.current, known.current.line.data(), sizeof(body.current));
  if (known.former.has_value()) {
    std::memcpy(body.former, known.former->line.data(), sizeof(body.former));
    body.has_former = 1;
  }
  return body;
}

}  // namespace

Status PatternSwitch::Switch(const driver::Pattern& pattern, const Expel& expel) {
  {
    MutexLock lock(mutex_);
    if (std::exchange(switching_, true)) {
      return Status::Error(EBUSY, "the pattern is being changed already");
    }
  }
  Status done = SwitchInTurn(pattern, expel);
  MutexLock lock(mutex_);
  switching_ = false;
  return done;
}

Status PatternSwitch::SwitchInTurn(const driver::Pattern& pattern, const Expel& expel) {
  const driver::Pattern former = known().current;
  // Known first, told then: who says Hello, or asks again after it opened its callback queue pair, learns both here.
  SetKnown({pattern, former});
  Status told = Tell({pattern, former}, expel);
  if (told.ok()) {
    told = region_.term().SetPattern(pattern);
  }
  if (!told.ok()) {
    SetKnown({former, pattern});  // an absent page may read as either
    return told;
  }
  SetKnown({pattern, std::nullopt});
  return Tell({pattern, std::nullopt}, expel);
}

Status PatternSwitch::Tell(const Known& known, const Expel& expel) {
  const PatternBody body = ToBody(known);
  std::vector<SessionId> expelled;
  Mutex mutex;
  CondVar changed;
  size_t waiting = 0;
  const auto sessions = sessions_.WithCallbacks();
  {
    MutexLock lock(mutex);
    waiting = sessions.size();
  }
  for (const SessionId id : sessions) {
    workers_.Spawn([&, id] {
      const auto answer = sessions_.Call(id, kSetPattern, std::as_bytes(std::span(&body, 1)), kAcknowledge);
      MutexLock lock(mutex);
      if (!answer.ok()) {
        expelled.push_back(id);
      }
      waiting--;
      changed.NotifyAll();  // under the lock: the waiter's variables go when it sees zero
    });
  }
  {
    MutexLock lock(mutex);
    while (waiting != 0) {
      changed.WaitFor(mutex, kAcknowledge);  // every call has a deadline
    }
  }
  for (const SessionId id : expelled) {
    expel(id, "it does not acknowledge the new magic pattern");
  }
  return AwaitGone(expelled);
}

Status PatternSwitch::AwaitGone(const std::vector<SessionId>& expelled) {
  const auto deadline = steady_clock::now() + kLeave;
  const auto some_left = [&] {
    const auto list = sessions_.List();
    return std::any_of(list.begin(), list.end(), [&](const SessionInfo& info) {
      return std::find(expelled.begin(), expelled.end(), info.id) != expelled.end();
    });
  };
  return workers_.Run([&] {
    while (some_left()) {
      if (steady_clock::now() > deadline) {
        return Status::Error(ETIMEDOUT, "a client that was expelled is not gone");
      }
      Task::ParkUntil(steady_clock::now() + kLook);
    }
    return Status::Ok();
  });
}

}  // namespace termfs::tlib::server
