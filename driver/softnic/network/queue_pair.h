// SPDX-License-Identifier: Apache-2.0
//
// NetworkQueuePair: what queue pairs whose peers are on other hosts have in common, whatever the wire (wire_end.h): a
// reliable connection of RoCEv2 (roce_queue_pair.h) or a stream of iWARP (stream_queue_pair.h). Requests are sent by
// the thread that posts them; answers come in on the RNIC thread (network.h), or on that thread itself (own_port.h).
//
// Thread-safety: one thread, that of its completion queues.
// Ownership:     completion queues outlive it.
#pragma once

#include <memory>

#include "driver/nic.h"
#include "driver/softnic/completion_queue.h"
#include "driver/softnic/local_keys.h"
#include "driver/softnic/network/network.h"
#include "driver/softnic/network/wire_end.h"
#include "driver/softnic/shared_receives.h"

namespace termfs::driver::softnic {

class NetworkQueuePair : public QueuePair, public QueuePairCounts {
 public:
  ~NetworkQueuePair() override;

  uint32_t number() const override { return end_->number(); }
  Status PostSend(std::span<const SendWorkRequest> requests) override;
  Status PostRecv(std::span<const RecvWorkRequest> requests) override;
  Result<std::span<const std::byte>> SharedView(RKey rkey) override;
  void Close() override { end_->Close(/*detach=*/false); }
  bool connected() const override { return end_->ready(); }

 protected:
  NetworkQueuePair(std::shared_ptr<Network> network, const std::shared_ptr<Registry>& registry, uint32_t domain,
                   const QueuePairOptions& options)
      : network_(std::move(network)),
        options_(options),
        send_queue_(static_cast<SoftCompletionQueue*>(options.send_cq)),
        receive_queue_(static_cast<SoftCompletionQueue*>(options.recv_cq)),
        shared_(static_cast<NetworkSharedReceives*>(options.shared_receives)),
        local_keys_(registry, domain) {}
  static Status CheckOptions(const QueuePairOptions& options);

  struct Inlets {
    std::shared_ptr<CompletionInlet> sends;
    std::shared_ptr<CompletionInlet> receives;
  };
  Result<Inlets> Attach();
  void SetEnd(std::shared_ptr<WireEnd> end) { end_ = std::move(end); }
  // From now on the thread of the completion queues receives itself, on the port of `receiver`.
  Status PollPort(std::shared_ptr<PortReceiver> receiver);
  // EISCONN: a second time.
  Status BeginConnect() const;
  void EndConnect() { connected_once_ = true; }

  // Whether the wire can carry the request.
  virtual WcStatus CheckWire(const SendWorkRequest& request) const = 0;

  const std::shared_ptr<Network> network_;
  const QueuePairOptions options_;
  SoftCompletionQueue* const send_queue_;
  SoftCompletionQueue* const receive_queue_;
  NetworkSharedReceives* const shared_;  // null: receives of its own

 private:
  uint32_t own_receives() const { return shared_ != nullptr ? 1 : options_.max_recv; }
  // Whether the request can be carried out as far as this side knows.
  WcStatus Check(const SendWorkRequest& request);

  LocalKeys local_keys_;
  std::shared_ptr<WireEnd> end_;
  std::shared_ptr<OwnPort> own_port_;  // where NetworkPath::polled says so
  bool connected_once_ = false;
  bool send_attached_ = false;
  bool receive_attached_ = false;
};

}  // namespace termfs::driver::softnic
