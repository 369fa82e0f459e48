// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/network_port.h"

namespace termfs::tlib::server {

Result<std::unique_ptr<NetworkPort>> NetworkPort::Create(driver::Nic& nic, driver::ProtectionDomain& domain,
                                                         uint32_t max_connections, WakesPeers wakes) {
  std::unique_ptr<NetworkPort> port(new NetworkPort(domain));
  ASSIGN_OR_RETURN(port->bulk_, BulkPool::Create(domain));
  ASSIGN_OR_RETURN(port->queue_,
                   nic.CreateCompletionQueue(max_connections * (Connection::kMaxSend + Connection::kMaxReceive)));
  if (wakes == WakesPeers::kOncePerRound) {
    // Answers come in batches, as the SSD's do: who is woken by the first would see but that one, and sleep again.
    port->queue_->GatherWakeUps();
  }
  return port;
}

Result<NetworkPort::Opened> NetworkPort::Open(driver::Endpoint remote, const std::optional<driver::NetworkPath>& path,
                                              std::shared_ptr<Connection::Handler> handler) {
  Opened opened;
  ASSIGN_OR_RETURN(opened.connection, Connection::Create(domain_, *queue_, path, std::move(handler)));
  ASSIGN_OR_RETURN(opened.endpoint, opened.connection->Connect(std::move(remote)));
  const uint32_t number = opened.connection->number();
  connections_.emplace(number, opened.connection);
  opened.connection->set_on_port_gone([this, number] { connections_.erase(number); });
  return opened;
}

bool NetworkPort::Poll() {
  const size_t count = queue_->Poll(completions_);
  for (size_t i = 0; i < count; i++) {
    // A completion of a connection that has gone since is of no interest.
    if (const auto found = connections_.find(completions_[i].qp_num); found != connections_.end()) {
      found->second->OnCompletion(completions_[i]);  // it may close, but goes later
    }
  }
  return count != 0;
}

}  // namespace termfs::tlib::server
