// SPDX-License-Identifier: Apache-2.0
//
// The sessions that the service knows, from SessionOpened to the end of SessionClosed.
//
// Thread-safety: any thread; WaitUntilGone inside a task.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "fs/server/task_condition.h"

namespace termfs::fs::server {

// What a session has asked for; relaxed. Beside tlib/server/session_traffic.h.
struct FileTraffic {
  std::atomic<uint64_t> reads{0};  // by the server, where the client has no map of the file
  std::atomic<uint64_t> read_bytes{0};
  std::atomic<uint64_t> writes{0};
  std::atomic<uint64_t> write_bytes{0};
  std::atomic<uint64_t> metadata{0};  // everything else
};

struct Session {
  uint64_t id = 0;
  bool may_name_owners = false;          // root, or the owner of the volume: whom it says it acts for is believed
  uint64_t client = 0;                   // 0: no receipts are kept for it
  bool returned = false;                 // the receipts of its former session are there
  bool may_reclaim = false;              // locks that it had in a session before were kept
  bool may_cache = false;                // after a restart it is expected for as long as grants may last
  std::atomic<bool> writes_lost{false};  // bytes that were written for its former session, relaxed
  std::atomic<bool> expelled{false};     // its waiting requests give up
  std::atomic<bool> caches{false};       // it has a kernel that caches what it is granted
  FileTraffic traffic;
};

class SessionTable {
 public:
  void Add(std::shared_ptr<Session> session) {
    MutexLock lock(mutex_);
    sessions_[session->id] = std::move(session);
  }
  void Remove(uint64_t id) {
    MutexLock lock(mutex_);
    sessions_.erase(id);
    gone_.NotifyAll();
  }
  std::shared_ptr<Session> Find(uint64_t id) {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(id);
    return found == sessions_.end() ? nullptr : found->second;
  }
  // Those whose kernels cache.
  std::vector<uint64_t> Caching() {
    std::vector<uint64_t> ids;
    MutexLock lock(mutex_);
    for (const auto& [id, session] : sessions_) {
      if (session->caches.load(std::memory_order_relaxed)) {
        ids.push_back(id);
      }
    }
    return ids;
  }
  // Returns when the session holds nothing any more; ETIMEDOUT. `cancelled` (may be null): ECANCELED, or two would wait
  // for each other's end.
  Status WaitUntilGone(uint64_t id, Deadline deadline, const std::atomic<bool>* cancelled = nullptr) {
    constexpr std::chrono::milliseconds kLook{50};
    MutexLock lock(mutex_);
    while (sessions_.contains(id)) {
      const auto now = std::chrono::steady_clock::now();
      if (cancelled != nullptr && cancelled->load(std::memory_order_relaxed)) {
        return Status::Error(ECANCELED, "the session that waits is expelled, too");
      }
      if (now >= deadline) {
        return Status::Error(ETIMEDOUT, "waiting for the end of an expelled session");
      }
      gone_.WaitUntil(mutex_, cancelled != nullptr ? std::min<Deadline>(deadline, now + kLook) : deadline);
    }
    return Status::Ok();
  }

 private:
  Mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<Session>> sessions_ GUARDED_BY(mutex_);
  TaskCondition gone_ GUARDED_BY(mutex_);
};

}  // namespace termfs::fs::server
