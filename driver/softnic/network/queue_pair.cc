// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/network/queue_pair.h"

namespace termfs::driver::softnic {

Status NetworkQueuePair::CheckOptions(const QueuePairOptions& options) {
  constexpr uint32_t kMaxInFlight = 1U << 16;
  if (options.send_cq == nullptr || options.recv_cq == nullptr || options.max_recv > kMaxInFlight ||
      options.max_send == 0 || options.max_send > kMaxInFlight) {
    return Status::Error(EINVAL,
                         "create a queue pair: needs both completion queues, max_send of 1 to 65536, and max_recv up "
                         "to 65536");
  }
  if (IsIpv4(options.network->local) != IsIpv4(options.network->remote)) {
    return Status::Error(EINVAL, "create a queue pair from an IPv4 to an IPv6 address");
  }
  return Status::Ok();
}

Result<NetworkQueuePair::Inlets> NetworkQueuePair::Attach() {
  Inlets inlets;
  ASSIGN_OR_RETURN(inlets.sends, send_queue_->AttachToInlet(options_.max_send));
  send_attached_ = true;
  ASSIGN_OR_RETURN(inlets.receives, receive_queue_->AttachToInlet(own_receives()));
  receive_attached_ = true;
  return inlets;
}

Status NetworkQueuePair::PollPort(std::shared_ptr<PortReceiver> receiver) {
  own_port_ = std::make_shared<OwnPort>(*network_, std::move(receiver));
  RETURN_IF_ERROR(own_port_->Open());
  network_->Add(own_port_);
  RETURN_IF_ERROR(send_queue_->Add(own_port_.get()));
  if (receive_queue_ != send_queue_) {
    RETURN_IF_ERROR(receive_queue_->Add(own_port_.get()));
  }
  return Status::Ok();
}

NetworkQueuePair::~NetworkQueuePair() {
  if (own_port_ != nullptr) {
    send_queue_->Remove(own_port_.get());
    receive_queue_->Remove(own_port_.get());
    network_->Remove(*own_port_);
    own_port_->Close();
  }
  if (end_ != nullptr) {
    network_->Remove(*end_);
    end_->Close(/*detach=*/true);
  }
  if (send_attached_) {
    send_queue_->Detach(this, options_.max_send, shared_ != nullptr);
  }
  if (receive_attached_) {
    receive_queue_->Detach(this, own_receives(), shared_ != nullptr);
  }
}

Status NetworkQueuePair::BeginConnect() const {
  return connected_once_ ? Status::Error(EISCONN, "connect a queue pair a second time") : Status::Ok();
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
      (atomic && request.local.length != kAtomicBytes)) {
    return WcStatus::kLocLenErr;
  }
  return CheckWire(request);
}

Status NetworkQueuePair::PostSend(std::span<const SendWorkRequest> requests) {
  if (!connected_once_) [[unlikely]] {
    return Status::Error(ENOTCONN, "post a send to a queue pair that is not connected");
  }
  sends_in_flight_ -= end_->TakeUnsignaled();
  if (requests.size() > options_.max_send - sends_in_flight_) [[unlikely]] {
    return Status::Error(ENOMEM, "post more sends than the queue pair holds");
  }
  sends_in_flight_ += static_cast<uint32_t>(requests.size());
  size_t good = 0;
  WcStatus status = WcStatus::kSuccess;
  while (good < requests.size() && status == WcStatus::kSuccess) {
    status = Check(requests[good++]);
  }
  end_->Post(requests.first(good), status);
  if (good < requests.size()) {  // they follow one that failed
    end_->Post(requests.subspan(good), WcStatus::kSuccess);
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
    end_->Post({&checked, 1});
  }
  return Status::Ok();
}

Result<std::span<const std::byte>> NetworkQueuePair::SharedView(RKey) {
  return Status::Error(ENOTSUP, "map memory of another host");
}

}  // namespace termfs::driver::softnic
