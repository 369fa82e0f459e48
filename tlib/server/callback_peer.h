// SPDX-License-Identifier: Apache-2.0
//
// CallbackPeer: the server's calls to one client, over the client's callback connection. Up to kChannelCredits of them
// are in flight, the others queue. A call that timed out keeps its credit until the client answers or the connection
// goes, so a client that does not answer holds up its own callbacks only.
//
// Thread-safety: Call from tasks of any worker; the rest on the connection's worker.
// Errors:        ENOTCONN: the connection is lost; ETIMEDOUT; otherwise what the client answered.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "tlib/server/connection.h"
#include "tlib/server/worker.h"

namespace termfs::tlib::server {

class CallbackPeer final : public Connection::Handler, public std::enable_shared_from_this<CallbackPeer> {
 public:
  CallbackPeer(Worker& worker, uint64_t epoch) : worker_(worker), epoch_(epoch) {}

  // On the worker, once: the connection to call over.
  void Attach(std::shared_ptr<Connection> connection) { connection_ = std::move(connection); }

  // In a task.
  Result<std::vector<std::byte>> Call(uint16_t opcode, std::span<const std::byte> body,
                                      std::chrono::milliseconds timeout);

  Status OnMessage(Connection& connection, std::span<const std::byte> message) override;
  Status OnRing() override { return Status::Error(EPROTO, "the client rings on its callback queue pair"); }
  void OnClosing(Connection& connection) override;

 private:
  struct Pending {
    uint16_t opcode = 0;
    std::vector<std::byte> body;
    Mutex mutex;
    Task* caller GUARDED_BY(mutex) = nullptr;  // null: it has given up
    bool done GUARDED_BY(mutex) = false;
    Status error GUARDED_BY(mutex);
    std::vector<std::byte> reply GUARDED_BY(mutex);
  };

  void Pump();
  Status SendCall(uint64_t call, const Pending& pending);
  static void Finish(Pending& pending, Status error, std::span<const std::byte> reply);
  static bool Abandoned(Pending& pending);

  Worker& worker_;
  const uint64_t epoch_;
  std::shared_ptr<Connection> connection_;
  bool closed_ = false;
  uint64_t next_call_ = 1;
  std::deque<std::shared_ptr<Pending>> queue_;
  std::unordered_map<uint64_t, std::shared_ptr<Pending>> in_flight_;
};

}  // namespace termfs::tlib::server
