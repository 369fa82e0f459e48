// SPDX-License-Identifier: Apache-2.0
//
// RoceQueuePair: a queue pair that is a reliable connection of RoCEv2.
//
// Thread-safety: one thread, that of its completion queues.
// Ownership:     completion queues outlive it.
#pragma once

#include <memory>

#include "driver/softnic/network/queue_pair.h"

namespace termfs::driver::softnic {

class RoceQueuePair final : public NetworkQueuePair {
 public:
  static Result<std::unique_ptr<QueuePair>> Create(std::shared_ptr<Network> network,
                                                   const std::shared_ptr<Registry>& registry, uint32_t domain,
                                                   const QueuePairOptions& options);

  Result<Endpoint> LocalEndpoint() override;
  Status Connect(Endpoint remote) override;

 private:
  using NetworkQueuePair::NetworkQueuePair;
  Status Init(const std::shared_ptr<Registry>& registry, uint32_t domain);
  WcStatus CheckWire(const SendWorkRequest& request) const override;

  UdpPort* port_ = nullptr;
  std::shared_ptr<Connection> connection_;
  uint32_t first_sequence_ = 0;
  uint32_t mtu_ = 0;
};

}  // namespace termfs::driver::softnic
