// SPDX-License-Identifier: Apache-2.0
//
// SessionTable: the clients' sessions, their connections on the workers, and how all that ends.
//
//   Open --> OpenQueuePair, StartHeat, Call ... --> Close --(last connection gone)--> gone() --> Remove
//
// After Close nothing can be opened. Every connection is closed on its worker; it goes when no request uses it any
// more.
//
// Thread-safety: any thread; Call in a task.
// Ownership:     owns the sessions; refers to workers, region and dispatcher, which outlive the last connection.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/metrics.h"
#include "base/mutex.h"
#include "base/result.h"
#include "driver/nic.h"
#include "tlib/server/callback_peer.h"
#include "tlib/server/connection.h"
#include "tlib/server/dispatcher.h"
#include "tlib/server/heat_reader.h"
#include "tlib/server/server.h"
#include "tlib/server/session_traffic.h"
#include "tlib/server/worker_set.h"

namespace termfs::tlib::server {

class SessionTable {
 public:
  using Opened = std::function<void(Result<driver::Endpoint>)>;
  struct QueuePairRequest {
    bool for_callbacks = false;
    int cpu = -1;  // that the client waits on; -1: none
    driver::Endpoint remote;
    std::unique_ptr<MessageSeal> seal;  // of its messages; null: they are not sealed
  };

  SessionTable(WorkerSet& workers, Dispatcher& dispatcher, Region& region, MetricsRegistry& metrics, uint64_t epoch,
               std::chrono::milliseconds sample_period)
      : workers_(workers),
        dispatcher_(dispatcher),
        region_(region),
        heat_reads_(metrics.counter("heat_reads_total")),
        epoch_(epoch),
        sample_period_(sample_period) {}
  SessionTable(const SessionTable&) = delete;
  SessionTable& operator=(const SessionTable&) = delete;

  // A new session; the id is set here. `path`: where its client is, when it is not a process of this host.
  SessionInfo Open(SessionInfo info, const std::optional<driver::NetworkPath>& path = {}) EXCLUDES(mutex_);
  // Calls `opened` on a worker's thread. ENOTCONN: the session is closing; EALREADY: a second callback queue pair;
  // EUSERS: enough.
  void OpenQueuePair(SessionId id, QueuePairRequest request, Opened opened) EXCLUDES(mutex_);
  // Reads the access counts over the session's first data connection. EINVAL, ENOTCONN: there is none.
  Status StartHeat(SessionId id, const HeatExport& exported) EXCLUDES(mutex_);
  // Closes all connections; `gone` is called once, on a worker's thread or here. False: no such session, or closed
  // before.
  bool Close(SessionId id, const Status& why, std::function<void()> gone) EXCLUDES(mutex_);
  void Remove(SessionId id) EXCLUDES(mutex_);
  // Called on a worker's thread when a client on another host cannot be reached over one of its queue pairs: it should
  // make another session. Before the first one.
  void set_on_unreachable(std::function<void(SessionId)> on_unreachable) {
    on_unreachable_ = std::move(on_unreachable);
  }

  // In a task. ENOTCONN: no such session, or it takes no calls.
  Result<std::vector<std::byte>> Call(SessionId id, uint16_t opcode, std::span<const std::byte> body,
                                      std::chrono::milliseconds timeout) EXCLUDES(mutex_);
  // Those that take calls; or of these, those that READ in that way.
  std::vector<SessionId> WithCallbacks(std::optional<driver::ReadWay> way = {}) const EXCLUDES(mutex_);
  std::vector<SessionInfo> List() const EXCLUDES(mutex_);

 private:
  struct Attached {
    WorkerUnit* unit = nullptr;
    std::shared_ptr<Connection> connection;
    std::shared_ptr<DataHandler> data;  // null: for callbacks
  };
  struct Session {
    SessionInfo info;
    std::optional<driver::NetworkPath> path;
    std::chrono::steady_clock::time_point since;
    std::vector<Attached> connections;
    std::shared_ptr<CallbackPeer> callbacks;
    uint32_t opening = 0;
    bool closing = false;
    bool heat = false;
    std::shared_ptr<SessionTraffic> traffic;
    std::function<void()> gone;
  };

  std::shared_ptr<SessionTraffic> TrafficOf(SessionId id) EXCLUDES(mutex_);  // null: no such session
  // On the unit's worker.
  Result<driver::Endpoint> OpenOnWorker(SessionId id, WorkerUnit& unit, QueuePairRequest request,
                                        const std::optional<driver::NetworkPath>& path) EXCLUDES(mutex_);
  Status Attach(SessionId id, Attached attached, const std::shared_ptr<CallbackPeer>& callbacks) EXCLUDES(mutex_);
  void OnConnectionGone(SessionId id, const Connection* connection) EXCLUDES(mutex_);
  void OnOpeningEnded(SessionId id) EXCLUDES(mutex_);
  // What is to be called when nothing of the session is left.
  static std::function<void()> TakeGone(Session& session);

  WorkerSet& workers_;
  Dispatcher& dispatcher_;
  Region& region_;
  Counter& heat_reads_;
  const uint64_t epoch_;
  const std::chrono::milliseconds sample_period_;
  std::function<void(SessionId)> on_unreachable_;
  mutable Mutex mutex_;
  uint64_t next_id_ GUARDED_BY(mutex_) = 1;
  std::map<SessionId, Session> sessions_ GUARDED_BY(mutex_);
};

}  // namespace termfs::tlib::server
