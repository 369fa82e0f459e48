// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/network/stream_queue_pair.h"

#include <algorithm>

#include "driver/big_endian.h"

namespace termfs::driver::softnic {
namespace {

constexpr uint32_t kMagic = 0x69574152;  // "iWAR"
constexpr size_t kEndpointBytes = 4 + 2 + sizeof(StreamToken);

// Of an end that dials all is zero. `port`: 0 of one that is dialled where its control channel is.
struct StreamEndpoint {
  uint16_t port = 0;
  StreamToken token{};
};

Endpoint Encode(const StreamEndpoint& info) {
  Endpoint endpoint;
  endpoint.bytes.resize(kEndpointBytes);
  BigEndianWriter writer(endpoint.bytes.data());
  writer.Put(kMagic, 4);
  writer.Put(info.port, 2);
  std::copy(info.token.begin(), info.token.end(), endpoint.bytes.end() - static_cast<ptrdiff_t>(info.token.size()));
  return endpoint;
}

Result<StreamEndpoint> Decode(const Endpoint& endpoint) {
  if (endpoint.bytes.size() != kEndpointBytes) {
    return Status::Error(EPROTO, "the peer's endpoint is not one of iWARP");
  }
  BigEndianReader reader(endpoint.bytes.data());
  if (reader.Get32() != kMagic) {
    return Status::Error(EPROTO, "the peer's endpoint is not one of iWARP");
  }
  StreamEndpoint info;
  info.port = reader.Get16();
  std::copy(endpoint.bytes.end() - static_cast<ptrdiff_t>(info.token.size()), endpoint.bytes.end(), info.token.begin());
  return info;
}

}  // namespace

Result<std::unique_ptr<QueuePair>> StreamQueuePair::Create(std::shared_ptr<Network> network,
                                                           const std::shared_ptr<Registry>& registry, uint32_t domain,
                                                           const QueuePairOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<StreamQueuePair> pair(new StreamQueuePair(std::move(network), registry, domain, options));
  RETURN_IF_ERROR(pair->Init(registry, domain));
  return std::unique_ptr<QueuePair>(std::move(pair));
}

Status StreamQueuePair::Init(const std::shared_ptr<Registry>& registry, uint32_t domain) {
  RETURN_IF_ERROR(network_->StartTimer());
  ASSIGN_OR_RETURN(const uint32_t number, network_->TakeNumber());
  ASSIGN_OR_RETURN(Inlets inlets, Attach());
  iwarp::StreamOptions stream;
  stream.queue_pair = number;
  stream.dials = options_.network->dials;
  stream.with_crc = options_.network->tls == nullptr;
  stream.receives = shared_;
  stream.waits_for_receives = true;
  ASSIGN_OR_RETURN(StreamLoop* const loop, network_->streams().TakeLoop());
  stream_ = std::make_shared<StreamEnd>(
      *loop, network_->counters(), ExportedMemory(registry, domain, options_.network->key_mask), stream,
      options_.rnr_timeout, this, std::move(inlets.sends), std::move(inlets.receives), shared_ != nullptr);
  SetEnd(stream_);
  if (options_.network->dials && options_.network->polled) {
    stream_->SetPolled();
  }
  loop->Add(stream_);
  return Status::Ok();
}

Result<Endpoint> StreamQueuePair::LocalEndpoint() {
  const NetworkPath& path = *options_.network;
  StreamEndpoint endpoint;
  if (!path.dials) {
    if (!path.adopts) {
      if (path.tls != nullptr) {
        return Status::Error(ENOTSUP, "TLS on a port that the RNIC listens on itself: handshakes take it too long");
      }
      ASSIGN_OR_RETURN(endpoint.port, network_->streams().Listen(path.local, path.interface));
    }
    endpoint.port = path.adopts ? path.local_port : endpoint.port;
    ASSIGN_OR_RETURN(endpoint.token, network_->streams().Expect(stream_));
  }
  return Encode(endpoint);
}

Status StreamQueuePair::Connect(Endpoint remote) {
  RETURN_IF_ERROR(BeginConnect());
  const NetworkPath& path = *options_.network;
  ASSIGN_OR_RETURN(const StreamEndpoint peer, Decode(remote));
  if (path.dials == (peer.token == StreamToken{})) {
    return Status::Error(EPROTO, path.dials ? "the peer dials, too" : "the peer waits to be dialled, too");
  }
  if (path.dials) {
    RETURN_IF_ERROR(
        network_->streams().Dial(path, peer.port != 0 ? peer.port : path.remote_port, peer.token, *stream_));
    if (path.polled) {
      RETURN_IF_ERROR(PollPort(stream_));
    }
  }
  stream_->Enable();
  EndConnect();
  return Status::Ok();
}

Status StreamQueuePair::PostSend(std::span<const SendWorkRequest> requests) {
  const auto carried = [](const SendWorkRequest& request) {
    return request.opcode == Opcode::kSend || request.opcode == Opcode::kRdmaRead ||
           request.opcode == Opcode::kRdmaWrite || request.opcode == Opcode::kRecv;
  };
  if (!std::all_of(requests.begin(), requests.end(), carried)) [[unlikely]] {
    return Status::Error(ENOTSUP, "post an atomic operation, or a WRITE with immediate data, over iWARP");
  }
  return NetworkQueuePair::PostSend(requests);
}

}  // namespace termfs::driver::softnic
