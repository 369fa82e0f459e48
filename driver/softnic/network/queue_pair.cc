// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/network/queue_pair.h"

#include <algorithm>

#include "base/random.h"

namespace termfs::driver::softnic {
namespace {

constexpr uint32_t kMaxInFlight = 1U << 16;
constexpr uint32_t kLeastMtu = 256;
constexpr uint32_t kLargestMtu = 4096;

// The largest of the five that fits.
Result<uint32_t> MtuOf(const NetworkPath& path) {
  constexpr uint32_t kUdp = 8;
  constexpr uint32_t kMostHeaders = 12 + 16 + 4 + roce::kCrcBytes;  // of a packet with payload
  ASSIGN_OR_RETURN(const uint32_t path_mtu, UdpPort::PathMtu(path));
  const uint32_t headers = (IsIpv4(path.remote) ? 20 : 40) + kUdp + kMostHeaders;
  uint32_t mtu = kLargestMtu;
  while (mtu >= kLeastMtu && mtu + headers > path_mtu) {
    mtu /= 2;
  }
  if (mtu < kLeastMtu) {
    return Status::Error(EMSGSIZE, "the MTU towards " + ToString(path.remote) + " is only " + std::to_string(path_mtu));
  }
  return mtu;
}

}  // namespace

Result<std::unique_ptr<QueuePair>> NetworkQueuePair::Create(std::shared_ptr<Network> network,
                                                            const std::shared_ptr<Registry>& registry, uint32_t domain,
                                                            const QueuePairOptions& options) {
  if (options.send_cq == nullptr || options.recv_cq == nullptr || options.max_recv > kMaxInFlight ||
      options.max_send == 0 || options.max_send > kMaxInFlight) {
    return Status::Error(EINVAL,
                         "create a queue pair: needs both completion queues, max_send of 1 to 65536, and max_recv up "
                         "to 65536");
  }
  if (IsIpv4(options.network->local) != IsIpv4(options.network->remote)) {
    return Status::Error(EINVAL, "create a queue pair from an IPv4 to an IPv6 address");
  }
  std::unique_ptr<NetworkQueuePair> pair(new NetworkQueuePair(std::move(network), registry, domain, options));
  RETURN_IF_ERROR(pair->Init(registry, domain));
  return std::unique_ptr<QueuePair>(std::move(pair));
}

Status NetworkQueuePair::Init(const std::shared_ptr<Registry>& registry, uint32_t domain) {
  const NetworkPath& path = *options_.network;
  std::unique_ptr<UdpPort> own;
  if (path.polled) {
    ASSIGN_OR_RETURN(own, network_->OpenPort(path.local, path.interface));
    port_ = own.get();
  } else {
    ASSIGN_OR_RETURN(port_, network_->SharedPort(path.local, path.interface));
  }
  ASSIGN_OR_RETURN(mtu_, MtuOf(path));
  RETURN_IF_ERROR(SecureRandom(&first_sequence_, sizeof(first_sequence_)));
  first_sequence_ &= roce::kSequenceMask;
  ASSIGN_OR_RETURN(auto sends, send_queue_->AttachToInlet(options_.max_send));
  send_attached_ = true;
  ASSIGN_OR_RETURN(auto receives, receive_queue_->AttachToInlet(own_receives()));
  receive_attached_ = true;
  connection_ = std::make_shared<Connection>(*port_, network_->counters(), ExportedMemory(registry, domain), this,
                                             std::move(sends), std::move(receives), shared_ != nullptr);
  if (own != nullptr) {
    own_port_ = std::make_shared<OwnPort>(*network_, std::move(own), connection_);
    RETURN_IF_ERROR(own_port_->Open());
    network_->Add(own_port_);
    RETURN_IF_ERROR(send_queue_->Add(own_port_.get()));
    if (receive_queue_ != send_queue_) {
      RETURN_IF_ERROR(receive_queue_->Add(own_port_.get()));
    }
  }
  return network_->Add(connection_);
}

NetworkQueuePair::~NetworkQueuePair() {
  if (own_port_ != nullptr) {
    send_queue_->Remove(own_port_.get());
    receive_queue_->Remove(own_port_.get());
    network_->Remove(*own_port_);
    own_port_->Close();
  }
  if (connection_ != nullptr) {
    network_->Remove(*connection_);
    connection_->Close(/*detach=*/true);
  }
  if (send_attached_) {
    send_queue_->Detach(this, options_.max_send, shared_ != nullptr);
  }
  if (receive_attached_) {
    receive_queue_->Detach(this, own_receives(), shared_ != nullptr);
  }
}

Result<Endpoint> NetworkQueuePair::LocalEndpoint() {
  return roce::Encode({.queue_pair = connection_->number(),
                       .first_sequence = first_sequence_,
                       .mtu = mtu_,
                       .max_reads = roce::kMaxReads,
                       .gid = options_.network->local,
                       .port = port_->number()});
}

Status NetworkQueuePair::Connect(Endpoint remote) {
  if (connected_once_) {
    return Status::Error(EISCONN, "connect a queue pair a second time");
  }
  const NetworkPath& path = *options_.network;
  ASSIGN_OR_RETURN(const roce::EndpointInfo peer, roce::Decode(remote, path.remote));
  roce::ConnectionOptions connection;
  connection.queue_pair = connection_->number();
  connection.peer = peer.queue_pair;
  connection.first_sequence = first_sequence_;
  connection.peer_first_sequence = peer.first_sequence;
  connection.mtu = std::min(mtu_, peer.mtu);
  connection.max_reads = std::min(peer.max_reads, roce::kMaxReads);
  connection.rnr_timeout = options_.rnr_timeout;
  connection.receives = shared_;
  connection_->Connect(connection, Flow(path.local, port_->number(), path.remote, peer.port, path.interface),
                       path.remote);
  connected_once_ = true;
  return Status::Ok();
}

WcStatus NetworkQueuePair::Check(const SendWorkRequest& request) {
  constexpr uint32_t kAtomicBytes = sizeof(uint64_t);
  const bool atomic = request.opcode == Opcode::kCompareSwap || request.opcode == Opcode::kFetchAdd;
  const bool written = atomic || request.opcode == Opcode::kRdmaRead;
  if (request.opcode == Opcode::kRecv) {
    return WcStatus::kFatalErr;
  }
  if (!local_keys_.Cover(request.local, written)) {
    return WcStatus::kLocProtErr;
  }
  if ((request.opcode == Opcode::kSend && request.local.length > options_.max_message) ||
      (atomic && request.local.length != kAtomicBytes) ||
      request.local.length / kLeastMtu >= roce::kMaxPacketsOfMessage) {
    return WcStatus::kLocLenErr;
  }
  return WcStatus::kSuccess;
}

Status NetworkQueuePair::PostSend(std::span<const SendWorkRequest> requests) {
  if (!connected_once_) [[unlikely]] {
    return Status::Error(ENOTCONN, "post a send to a queue pair that is not connected");
  }
  sends_in_flight_ -= connection_->TakeUnsignaled();
  if (requests.size() > options_.max_send - sends_in_flight_) [[unlikely]] {
    return Status::Error(ENOMEM, "post more sends than the queue pair holds");
  }
  sends_in_flight_ += static_cast<uint32_t>(requests.size());
  size_t good = 0;
  WcStatus status = WcStatus::kSuccess;
  while (good < requests.size() && status == WcStatus::kSuccess) {
    status = Check(requests[good++]);
  }
  connection_->Post(requests.first(good), status);
  if (good < requests.size()) {  // they follow one that failed
    connection_->Post(requests.subspan(good), WcStatus::kSuccess);
  }
  network_->KeepTime();
  return Status::Ok();
}

Status NetworkQueuePair::PostRecv(std::span<const RecvWorkRequest> requests) {
  if (shared_ != nullptr) {
    return Status::Error(EINVAL, "post a receive to a queue pair that takes shared ones");
  }
  if (requests.size() > options_.max_recv - receives_in_flight_) {
    return Status::Error(ENOMEM, "post more receives than the queue pair holds");
  }
  receives_in_flight_ += static_cast<uint32_t>(requests.size());
  for (const RecvWorkRequest& request : requests) {
    RecvWorkRequest checked = request;
    if (!local_keys_.Cover(request.local, /*write=*/true)) {
      checked.local = {};  // nothing fits into it
    }
    connection_->Post({&checked, 1});
  }
  return Status::Ok();
}

Result<std::span<const std::byte>> NetworkQueuePair::SharedView(RKey) {
  return Status::Error(ENOTSUP, "map memory of another host");
}

}  // namespace termfs::driver::softnic
