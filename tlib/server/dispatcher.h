// SPDX-License-Identifier: Apache-2.0
//
// Dispatcher: what happens to a request, from the message to the reply, in the request's coroutine.
//
// Thread-safety: any worker.
// Ownership:     refers to the region's I/O, the service and the blocking pool, which outlive every request.
// Errors:        a request that cannot be served is answered with its errno; one that cannot be read closes its
//                connection.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/metrics.h"
#include "tlib/server/blocking_pool.h"
#include "tlib/server/connection.h"
#include "tlib/server/network_port.h"
#include "tlib/server/region_io.h"
#include "tlib/server/server.h"
#include "tlib/server/session_traffic.h"

namespace termfs::tlib::server {

class Dispatcher {
 public:
  Dispatcher(RegionIoImpl& region, Service& service, BlockingPool& blocking, MetricsRegistry& metrics, uint64_t epoch);

  // In a task. `number`: of the message, where those are sealed.
  void Serve(SessionId session, SessionTraffic& traffic, Connection& connection, BulkPool& bulk,
             std::span<const std::byte> message, uint64_t number);

 private:
  using Reply = Result<std::vector<std::byte>>;
  Reply Answer(CallImpl& call, SessionTraffic& traffic, const DecodedRequest& request);
  Reply ServeRead(CallImpl& call, SessionTraffic& traffic, const DecodedRequest& request);
  Reply ServeWrite(CallImpl& call, const DecodedRequest& request);
  bool InRegion(uint64_t offset, uint32_t length) const {
    const uint64_t bytes = region_.bytes();
    return offset < bytes && length <= bytes - offset;
  }

  RegionIoImpl& region_;
  Service& service_;
  BlockingPool& blocking_;
  const uint64_t epoch_;
  Counter& reads_;
  Counter& read_pages_;
  Counter& writes_;
  Histogram& read_latency_;
  Histogram& write_latency_;
};

class HeatReader;

// The messages of one data connection: each becomes a task.
class DataHandler final : public Connection::Handler {
 public:
  DataHandler(Dispatcher& dispatcher, SessionId session, std::shared_ptr<SessionTraffic> traffic, BulkPool& bulk)
      : dispatcher_(dispatcher), session_(session), traffic_(std::move(traffic)), bulk_(bulk) {}

  Status OnMessage(Connection& connection, std::span<const std::byte> message) override;
  Status OnRing() override;
  void OnClosing(Connection& connection) override;

  // Is told when the client rings, and when the connection closes.
  void set_heat(std::shared_ptr<HeatReader> heat) { heat_ = std::move(heat); }
  const std::shared_ptr<SessionTraffic>& traffic() const { return traffic_; }

 private:
  struct Request {
    std::optional<Connection::User> connection;
    std::vector<std::byte> message;  // private: the receive buffer is posted again
    uint64_t number = 0;             // of it, where they are sealed
  };

  Dispatcher& dispatcher_;
  const SessionId session_;
  const std::shared_ptr<SessionTraffic> traffic_;
  BulkPool& bulk_;
  std::shared_ptr<HeatReader> heat_;  // null: the client exports no access counts
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<Request*> idle_;  // of these
};

}  // namespace termfs::tlib::server
