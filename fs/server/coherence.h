// SPDX-License-Identifier: Apache-2.0
//
// Coherence: makes what other sessions cache void before an operation is acknowledged. Two kinds:
//
//   Revoke       the maps that sessions hold. Inside the inode's gate, before the change is visible. The client
//                needs nothing but its own memory to answer.
//   Invalidate   what their kernels cache. After the gate was left: the kernel may first write dirty pages back, and
//                that write must get through. The client acknowledges with kFsInvalidated.
//
// Whoever does not answer in time is expelled, and the wait goes on until it holds nothing; so a dead client delays
// others by seconds. This class is where leases take the place of grants.
//
// Thread-safety: Revoke and Invalidate inside a task; the others from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/metrics.h"
#include "fs/server/inode.h"
#include "fs/server/sessions.h"
#include "tlib/server/server.h"

namespace termfs::fs::server {

struct CoherenceTimeouts {
  std::chrono::milliseconds revoke{3000};
  std::chrono::milliseconds invalidate{5000};
  std::chrono::milliseconds expel{10000};
};

class Coherence {
 public:
  Coherence(SessionTable& sessions, const CoherenceTimeouts& timeouts, MetricsRegistry& metrics);

  void Attach(tlib::server::Server& server) { server_.store(&server, std::memory_order_release); }

  // Voids the maps of all sessions but `keep` (0: of all), and freezes the inode. REQUIRES: exclusive in the gate.
  Status Revoke(Inode& inode, uint64_t keep);
  // Has the kernels of all openers but `writer` drop [offset, offset + length); length 0: to the end.
  // REQUIRES: not in the gate.
  void Invalidate(Inode& inode, uint64_t writer, uint64_t offset, uint64_t length);

  // kFsInvalidated came from `session`. ENOENT: it had no such ticket.
  Status Acknowledge(uint64_t session, uint64_t ticket);
  void SessionClosed(uint64_t session);

 private:
  struct Ticket {
    uint64_t session;
    bool done = false;
  };
  Status RevokeOne(uint64_t session, const RevokeBody& body);
  Status InvalidateOne(uint64_t session, InvalidateBody body);
  Status Expel(uint64_t session, const char* why);
  // Calls `one` for each session, side by side; the first error.
  Status ForEach(const std::vector<uint64_t>& sessions, const std::function<Status(uint64_t)>& one);
  tlib::server::Server& server() { return *server_.load(std::memory_order_acquire); }

  SessionTable& sessions_;
  const CoherenceTimeouts timeouts_;
  Counter& revocations_;
  Counter& invalidations_;
  Counter& expulsions_;
  std::atomic<tlib::server::Server*> server_{nullptr};

  Mutex mutex_;
  uint64_t next_ticket_ GUARDED_BY(mutex_) = 1;
  std::unordered_map<uint64_t, Ticket> tickets_ GUARDED_BY(mutex_);
  TaskCondition acknowledged_ GUARDED_BY(mutex_);
};

}  // namespace termfs::fs::server
