// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/tell_clients.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/mutex.h"
#include "tlib/server/task.h"

namespace termfs::tlib::server {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kAcknowledge{5};
constexpr std::chrono::seconds kLeave{30};
constexpr std::chrono::milliseconds kLook{1};

struct Answers {
  Mutex mutex;
  size_t waiting GUARDED_BY(mutex) = 0;
  std::vector<SessionId> unheard GUARDED_BY(mutex);
};

Status AwaitGone(const SessionTable& sessions, const std::vector<SessionId>& expelled) {
  const auto deadline = steady_clock::now() + kLeave;
  const auto some_left = [&] {
    const auto list = sessions.List();
    return std::any_of(list.begin(), list.end(), [&](const SessionInfo& info) {
      return std::find(expelled.begin(), expelled.end(), info.id) != expelled.end();
    });
  };
  while (some_left()) {
    if (steady_clock::now() > deadline) {
      return Status::Error(ETIMEDOUT, "a client that was expelled is not gone");
    }
    Task::ParkUntil(steady_clock::now() + kLook);
  }
  return Status::Ok();
}

}  // namespace

Status TellClients(WorkerSet& workers, SessionTable& sessions, std::span<const SessionId> clients,
                   const ClientNotice& notice, const ExpelClient& expel) {
  const auto answers = std::make_shared<Answers>();
  {
    MutexLock lock(answers->mutex);
    answers->waiting = clients.size();
  }
  const std::vector<std::byte> body(notice.body.begin(), notice.body.end());
  for (const SessionId id : clients) {
    workers.Spawn([answers, id, body, opcode = notice.opcode, &sessions] {
      const auto answer = sessions.Call(id, opcode, body, kAcknowledge);
      MutexLock lock(answers->mutex);
      if (!answer.ok()) {
        answers->unheard.push_back(id);
      }
      answers->waiting--;
    });
  }
  const auto all_answered = [&] {
    MutexLock lock(answers->mutex);
    return answers->waiting == 0;
  };
  while (!all_answered()) {  // every call has a deadline
    Task::ParkUntil(steady_clock::now() + kLook);
  }
  std::vector<SessionId> unheard;
  {
    MutexLock lock(answers->mutex);
    unheard = answers->unheard;
  }
  for (const SessionId id : unheard) {
    expel(id, notice.unheard);
  }
  return AwaitGone(sessions, unheard);
}

}  // namespace termfs::tlib::server
