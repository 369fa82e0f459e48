// SPDX-License-Identifier: Apache-2.0
//
// NetworkQueuePair: a queue pair whose peer is on another host, a RoCEv2 reliable connection. Its requests are sent by
// the thread that posts them; answers come in on the RNIC thread (network.h).
//
// Thread-safety: one thread, that of its completion queues.
// Ownership:     completion queues outlive it.
#pragma once

#include <memory>

#include "driver/nic.h"
#include "driver/softnic/completion_queue.h"
#include "driver/softnic/local_keys.h"
#include "driver/softnic/network/network.h"
#include "driver/softnic/shared_receives.h"

namespace termfs::driver::softnic {

class NetworkQueuePair final : public QueuePair, public QueuePairCounts {
 public:
  static Result<std::unique_ptr<QueuePair>> Create(std::shared_ptr<Network> network,
                                                   const std::shared_ptr<Registry>& registry, uint32_t domain,
                                                   const QueuePairOptions& options);
  ~NetworkQueuePair() override;

  uint32_t number() const override { return connection_->number(); }
  Result<Endpoint> LocalEndpoint() override;
  Status Connect(Endpoint remote) override;
  Status PostSend(std::span<const SendWorkRequest> requests) override;
  Status PostRecv(std::span<const RecvWorkRequest> requests) override;
  Result<std::span<const std::byte>> SharedView(RKey rkey) override;
  void Close() override { connection_->Close(/*detach=*/false); }
  bool connected() const override { return connection_->ready(); }

 private:
  NetworkQueuePair(std::shared_ptr<Network> network, const std::shared_ptr<Registry>& registry, uint32_t domain,
                   const QueuePairOptions& options)
      : network_(std::move(network)),
        options_(options),
        send_queue_(static_cast<SoftCompletionQueue*>(options.send_cq)),
        receive_queue_(static_cast<SoftCompletionQueue*>(options.recv_cq)),
        shared_(static_cast<NetworkSharedReceives*>(options.shared_receives)),
        local_keys_(registry, domain) {}
  Status Init(const std::shared_ptr<Registry>& registry, uint32_t domain);
  uint32_t own_receives() const { return shared_ != nullptr ? 1 : options_.max_recv; }
  // Whether the request can be carried out as far as this side knows.
  WcStatus Check(const SendWorkRequest& request);

  const std::shared_ptr<Network> network_;
  const QueuePairOptions options_;
  SoftCompletionQueue* const send_queue_;
  SoftCompletionQueue* const receive_queue_;
  NetworkSharedReceives* const shared_;  // null: receives of its own
  LocalKeys local_keys_;
  UdpPort* port_ = nullptr;
  std::shared_ptr<Connection> connection_;
  std::shared_ptr<OwnPort> own_port_;  // where NetworkPath::polled says so
  uint32_t first_sequence_ = 0;
  uint32_t mtu_ = 0;
  bool connected_once_ = false;
  bool send_attached_ = false;
  bool receive_attached_ = false;
};

}  // namespace termfs::driver::softnic
