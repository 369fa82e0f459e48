// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/network_port.h"

#include <algorithm>

#include "base/log.h"

namespace termfs::tlib::server {
namespace {

// Of one shared queue. More messages than these wait where they are until the next Poll.
constexpr uint32_t kReceives = 256;
constexpr uint32_t kFirstConnections = 64;

// Ids of receives: a buffer's number, with the bit of whose queue it is, and a tag that no id of a send has.
constexpr uint64_t kTagMask = 3;
constexpr uint64_t kReceiveTag = 2;
constexpr uint64_t kNetworkBit = 4;
constexpr int kNumberShift = 3;

uint32_t CapacityFor(size_t connections) {
  return static_cast<uint32_t>(size_t{2} * kReceives + connections * Connection::kMaxCompletions);
}

}  // namespace

Result<std::unique_ptr<NetworkPort>> NetworkPort::Create(driver::Nic& nic, driver::ProtectionDomain& domain,
                                                         WakesPeers wakes) {
  std::unique_ptr<NetworkPort> port(new NetworkPort(domain));
  ASSIGN_OR_RETURN(port->bulk_, BulkPool::Create(domain));
  port->capacity_ = CapacityFor(kFirstConnections);
  ASSIGN_OR_RETURN(port->queue_, nic.CreateCompletionQueue(port->capacity_));
  if (wakes == WakesPeers::kOncePerRound) {
    // Answers come in batches, as the SSD's do: who is woken by the first would see but that one, and sleep again.
    port->queue_->GatherWakeUps();
  }
  return port;
}

Status NetworkPort::MakeRoom(size_t connections) {
  const uint32_t needed = CapacityFor(connections);
  const uint32_t first = CapacityFor(kFirstConnections);
  if (needed > capacity_) {
    // By doubling, or if the RNIC has no queue so large, by what is needed.
    const uint32_t wanted = std::max(needed, 2 * capacity_);
    const bool doubled = queue_->Resize(wanted).ok();
    if (!doubled) {
      RETURN_IF_ERROR(queue_->Resize(needed));
    }
    capacity_ = doubled ? wanted : needed;
  } else if (capacity_ > first && needed < capacity_ / 4) {
    const uint32_t wanted = std::max(first, capacity_ / 2);
    capacity_ = queue_->Resize(wanted).ok() ? wanted : capacity_;
  }
  return Status::Ok();
}

Result<driver::SharedReceiveQueue*> NetworkPort::ReceivesFor(bool network) {
  auto& queue = network ? network_receives_ : receives_;
  if (queue == nullptr) {
    ASSIGN_OR_RETURN(auto made, domain_.CreateSharedReceiveQueue(
                                    {.max_recv = kReceives, .max_message = MaxSend(network), .network = network}));
    for (uint32_t i = 0; i < kReceives; i++) {
      ASSIGN_OR_RETURN(const uint32_t buffer, buffers_.Take());
      RETURN_IF_ERROR(PostReceive(*made, buffer, network));
    }
    queue = std::move(made);
  }
  return queue.get();
}

Status NetworkPort::PostReceive(driver::SharedReceiveQueue& queue, uint32_t buffer, bool network) {
  const driver::RecvWorkRequest receive{
      .id = uint64_t{buffer} << kNumberShift | (network ? kNetworkBit : 0) | kReceiveTag,
      .local = {.addr = buffers_.data(buffer), .length = MaxSend(network), .lkey = buffers_.lkey(buffer)}};
  return queue.PostRecv({&receive, 1});
}

Result<NetworkPort::Opened> NetworkPort::Open(driver::Endpoint remote, const std::optional<driver::NetworkPath>& path,
                                              std::unique_ptr<MessageSeal> seal,
                                              std::shared_ptr<Connection::Handler> handler) {
  RETURN_IF_ERROR(MakeRoom(connections_.size() + 1));
  ASSIGN_OR_RETURN(driver::SharedReceiveQueue* const receives, ReceivesFor(path.has_value()));
  Opened opened;
  ASSIGN_OR_RETURN(opened.connection,
                   Connection::Create({.domain = domain_, .queue = *queue_, .receives = *receives, .buffers = buffers_},
                                      path, std::move(seal), std::move(handler)));
  ASSIGN_OR_RETURN(opened.endpoint, opened.connection->Connect(std::move(remote)));
  const uint32_t number = opened.connection->number();
  connections_.emplace(number, opened.connection);
  opened.connection->set_on_port_gone([this, number] {
    connections_.erase(number);
    [[maybe_unused]] const Status smaller = MakeRoom(connections_.size());  // that needs no room
  });
  return opened;
}

void NetworkPort::OnReceive(const driver::WorkCompletion& completion) {
  const auto found = connections_.find(completion.qp_num);
  if (completion.id == driver::kNoReceive) {
    if (found != connections_.end()) {
      found->second->OnReceive(completion, {});
    }
    return;
  }
  const auto buffer = static_cast<uint32_t>(completion.id >> kNumberShift);
  if (found != connections_.end()) {
    const size_t length = completion.status == driver::WcStatus::kSuccess ? completion.byte_len : 0;
    found->second->OnReceive(completion, {buffers_.data(buffer), std::min<size_t>(length, kMaxSealed)});
  }
  const bool network = (completion.id & kNetworkBit) != 0;
  if (const Status posted = PostReceive(network ? *network_receives_ : *receives_, buffer, network); !posted.ok()) {
    LOG_ERROR("a receive is lost: {}", posted.ToString());
    buffers_.Give(buffer);
  }
}

bool NetworkPort::Poll() {
  const size_t count = queue_->Poll(completions_);
  for (size_t i = 0; i < count; i++) {
    const driver::WorkCompletion& completion = completions_[i];
    if (completion.id == driver::kNoReceive || (completion.id & kTagMask) == kReceiveTag) {
      OnReceive(completion);
      continue;
    }
    // A completion of a connection that has gone since is of no interest.
    if (const auto found = connections_.find(completion.qp_num); found != connections_.end()) {
      found->second->OnCompletion(completion);  // it may close, but goes later
    }
  }
  return count != 0;
}

}  // namespace termfs::tlib::server
