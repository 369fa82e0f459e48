// SPDX-License-Identifier: Apache-2.0
//
// NetworkPort: a worker's completion queue, the connections on it, what they share, and the registered buffers of its
// tasks. The completion queue grows with the connections, the receives do not: a message is taken out of a receive as
// soon as its completion is polled, and the receive posted again.
//
// Thread-safety: its worker's thread, except Create and destruction (before the worker starts, after it stopped).
// Ownership:     owns the completion queue; shares the connections until they are gone.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>

#include "base/result.h"
#include "driver/nic.h"
#include "tlib/server/bulk_pool.h"
#include "tlib/server/connection.h"
#include "tlib/server/message_buffers.h"
#include "tlib/server/worker.h"

namespace termfs::tlib::server {

// When a peer that sleeps is woken by what tasks have sent: as soon as their worker polls again, once for all of it; or
// by each message, where one task may hold up its worker, and with it what others have sent.
enum class WakesPeers : uint8_t { kOncePerRound, kAtOnce };

class NetworkPort final : public EventSource {
 public:
  struct Opened {
    std::shared_ptr<Connection> connection;
    driver::Endpoint endpoint;  // for the client
  };

  static Result<std::unique_ptr<NetworkPort>> Create(driver::Nic& nic, driver::ProtectionDomain& domain,
                                                     WakesPeers wakes);

  // EINVAL: the RNIC's completion queue cannot hold so many. EPROTO: a malformed endpoint. `path`: to a client on
  // another host. `seal`: of its messages; null: they are not sealed.
  Result<Opened> Open(driver::Endpoint remote, const std::optional<driver::NetworkPath>& path,
                      std::unique_ptr<MessageSeal> seal, std::shared_ptr<Connection::Handler> handler);
  BulkPool& bulk() { return *bulk_; }

  bool Poll() override;
  bool Arm() override { return queue_->Arm(); }
  void Disarm() override { queue_->Disarm(); }
  int fd() const override { return queue_->fd(); }

 private:
  explicit NetworkPort(driver::ProtectionDomain& domain) : domain_(domain), buffers_(domain) {}
  Result<driver::SharedReceiveQueue*> ReceivesFor(bool network);
  Status PostReceive(driver::SharedReceiveQueue& queue, uint32_t buffer, bool network);
  void OnReceive(const driver::WorkCompletion& completion);
  // Makes the completion queue large enough for so many.
  Status MakeRoom(size_t connections);

  driver::ProtectionDomain& domain_;
  MessageBuffers buffers_;
  std::unique_ptr<BulkPool> bulk_;
  std::unique_ptr<driver::CompletionQueue> queue_;
  uint32_t capacity_ = 0;                                                  // of the queue
  std::unique_ptr<driver::SharedReceiveQueue> receives_;                   // of connections on this host
  std::unique_ptr<driver::SharedReceiveQueue> network_receives_;           // of others; null: there was none yet
  std::unordered_map<uint32_t, std::shared_ptr<Connection>> connections_;  // by queue pair number
  std::array<driver::WorkCompletion, 32> completions_;  // of Poll, which is too hot to initialise them every time
};

}  // namespace termfs::tlib::server
