// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/network/roce_queue_pair.h"

#include <algorithm>

#include "base/random.h"

namespace termfs::driver::softnic {
namespace {

constexpr uint32_t kLeastMtu = 256;
constexpr uint32_t kLargestMtu = 4096;

// The largest of the five that fits.
Result<uint32_t> MtuOf(const NetworkPath& path) {
  constexpr uint32_t kUdp = 8;
  constexpr uint32_t kMostHeaders = 12 + 16 + 4 + roce::kCrcBytes;  // of a packet with payload
  constexpr uint32_t kTcp = 20;
  ASSIGN_OR_RETURN(uint32_t path_mtu, UdpPort::PathMtu(path));
  if (path.segment_limit != 0) {
    path_mtu = std::min(path_mtu, path.segment_limit + kTcp + (IsIpv4(path.remote) ? 20 : 40));
  }
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

Result<std::unique_ptr<QueuePair>> RoceQueuePair::Create(std::shared_ptr<Network> network,
                                                         const std::shared_ptr<Registry>& registry, uint32_t domain,
                                                         const QueuePairOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<RoceQueuePair> pair(new RoceQueuePair(std::move(network), registry, domain, options));
  RETURN_IF_ERROR(pair->Init(registry, domain));
  return std::unique_ptr<QueuePair>(std::move(pair));
}

Status RoceQueuePair::Init(const std::shared_ptr<Registry>& registry, uint32_t domain) {
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
  ASSIGN_OR_RETURN(Inlets inlets, Attach());
  connection_ =
      std::make_shared<Connection>(*port_, network_->counters(), ExportedMemory(registry, domain, path.key_mask), this,
                                   std::move(inlets.sends), std::move(inlets.receives), shared_ != nullptr);
  SetEnd(connection_);
  if (own != nullptr) {
    RETURN_IF_ERROR(PollPort(std::make_shared<UdpReceiver>(*network_, std::move(own), connection_)));
  }
  return network_->Add(connection_);
}

Result<Endpoint> RoceQueuePair::LocalEndpoint() {
  return roce::Encode({.queue_pair = connection_->number(),
                       .first_sequence = first_sequence_,
                       .mtu = mtu_,
                       .max_reads = roce::kMaxReads,
                       .gid = options_.network->local,
                       .port = port_->number(),
                       .sends_from_port = true});
}

Status RoceQueuePair::Connect(Endpoint remote) {
  RETURN_IF_ERROR(BeginConnect());
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
                       {.address = path.remote, .port = peer.sends_from_port ? peer.port : uint16_t{0}});
  EndConnect();
  return Status::Ok();
}

WcStatus RoceQueuePair::CheckWire(const SendWorkRequest& request) const {
  return request.local.length / kLeastMtu >= roce::kMaxPacketsOfMessage ? WcStatus::kLocLenErr : WcStatus::kSuccess;
}

}  // namespace termfs::driver::softnic
