// SPDX-License-Identifier: Apache-2.0
//
// StreamQueuePair: a queue pair that is an iWARP stream over a TCP connection. NetworkPath::dials says which end
// connects; the other one's endpoint has the port and a token.
//
// Thread-safety: one thread, that of its completion queues.
// Ownership:     completion queues outlive it.
#pragma once

#include <memory>

#include "driver/softnic/network/queue_pair.h"
#include "driver/softnic/network/stream_end.h"

namespace termfs::driver::softnic {

class StreamQueuePair final : public NetworkQueuePair {
 public:
  static Result<std::unique_ptr<QueuePair>> Create(std::shared_ptr<Network> network,
                                                   const std::shared_ptr<Registry>& registry, uint32_t domain,
                                                   const QueuePairOptions& options);

  Result<Endpoint> LocalEndpoint() override;
  // Of the end that dials: blocks until the connection is set up, for some seconds at most.
  Status Connect(Endpoint remote) override;
  // ENOTSUP: an atomic operation, or a WRITE with immediate data; nothing was posted.
  Status PostSend(std::span<const SendWorkRequest> requests) override;

 private:
  using NetworkQueuePair::NetworkQueuePair;
  Status Init(const std::shared_ptr<Registry>& registry, uint32_t domain);
  WcStatus CheckWire(const SendWorkRequest&) const override { return WcStatus::kSuccess; }

  std::shared_ptr<StreamEnd> stream_;
};

}  // namespace termfs::driver::softnic
