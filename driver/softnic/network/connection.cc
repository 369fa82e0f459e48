// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/network/connection.h"

#include <algorithm>
#include <utility>

namespace termfs::driver::softnic {

Connection::Connection(UdpPort& port, NetworkCounters& counters, ExportedMemory memory, QueuePairCounts* owner,
                       std::shared_ptr<CompletionInlet> sends, std::shared_ptr<CompletionInlet> receives,
                       bool shares_receives)
    : port_(port),
      counters_(counters),
      completions_(owner, std::move(sends), std::move(receives), shares_receives),
      memory_(std::move(memory)) {}

Connection::~Connection() = default;

void Connection::Connect(const roce::ConnectionOptions& options, const Flow& flow, const PacketSource& peer) {
  MutexLock lock(mutex_);
  flow_.emplace(flow);
  peer_ = peer;
  auto& sink = static_cast<roce::PacketSink&>(*this);
  requester_.emplace(options, sink, completions_, counted_);
  responder_.emplace(options, static_cast<RemoteMemory&>(memory_), sink, completions_, counted_);
  for (const RecvWorkRequest& receive : std::exchange(early_receives_, {})) {
    responder_->Post(receive);
  }
  connected_.store(true, std::memory_order_release);
}

void Connection::Post(std::span<const SendWorkRequest> requests, WcStatus local_error) {
  const TimePoint now = std::chrono::steady_clock::now();
  MutexLock lock(mutex_);
  const bool refuses = local_error != WcStatus::kSuccess && !requester_->failed();
  for (const SendWorkRequest& request : refuses ? requests.first(requests.size() - 1) : requests) {
    requester_->Post(request);
  }
  if (refuses) {
    requester_->Fail(WcStatus::kWrFlushErr);
    WorkCompletion completion;
    completion.id = requests.back().id;
    completion.status = local_error;
    completion.opcode = requests.back().opcode;
    completion.qp_num = number_;
    completions_.OnSend(completion);
  }
  Finish(now);
}

void Connection::Post(std::span<const RecvWorkRequest> requests) {
  MutexLock lock(mutex_);
  for (const RecvWorkRequest& request : requests) {
    if (responder_) {
      responder_->Post(request);
    } else {
      early_receives_.push_back(request);
    }
  }
  completions_.WakeReceives();
}

void Connection::Close(bool detach) {
  MutexLock lock(mutex_);
  if (detach) {
    completions_.Detach();
  }
  if (requester_) {
    requester_->Fail(WcStatus::kWrFlushErr);
    Finish(std::chrono::steady_clock::now());
  }
}

void Connection::OnTimer(TimePoint now) {
  MutexLock lock(mutex_);
  if (requester_) {
    requester_->OnTimer(now);
    Finish(now);
  }
}

bool Connection::Deliver(std::span<const Arrived> packets, TimePoint now) {
  MutexLock lock(mutex_);
  if (!requester_) {
    Count(counters_.no_connection, packets.size());
    return false;
  }
  for (const Arrived& arrived : packets) {
    if (arrived.from.address != peer_.address || (peer_.port != 0 && arrived.from.port != peer_.port)) {
      Count(counters_.no_connection);
    } else if (IsResponse(arrived.packet.op)) {
      requester_->OnPacket(arrived.packet, now);
    } else {
      responder_->OnPacket(arrived.packet);
    }
  }
  const bool more = responder_->Continue();
  Finish(now);
  return more;
}

bool Connection::Answer(TimePoint now) {
  MutexLock lock(mutex_);
  const bool more = responder_->Continue();
  Finish(now);
  return more;
}

void Connection::Finish(TimePoint now) {
  requester_->Continue(now);
  if (requester_->failed() || responder_->failed()) {
    if (!requester_->failed()) {
      requester_->Fail(WcStatus::kWrFlushErr);
    }
    if (!responder_->failed()) {
      responder_->Fail();
    }
    completions_.ReportEnd(number_);
  }
  Flush();
  // Sequentially consistent, as is the timer's stop (network.cc): one sees the other.
  deadline_.store(requester_->deadline().time_since_epoch().count(), std::memory_order_seq_cst);
  Count(counters_.out_of_place, std::exchange(counted_.dropped, 0));
  Count(counters_.retransmissions, std::exchange(counted_.retransmissions, 0));
  Count(counters_.timeouts, std::exchange(counted_.timeouts, 0));
  if (const uint64_t refusals = std::exchange(counted_.refusals, 0); refusals != 0) {
    Count(counters_.refusals, refusals);
    counters_.refusal_log.Report("refusal of a RoCE request", [number = number_, peer = peer_.address] {
      return "queue pair " + std::to_string(number) + ": a request of " + ToString(peer) +
             " is refused, the connection ends";
    });
  }
  completions_.Wake();
}

// ---------------------------------------------------------------------------------------------------------------
// Packets on their way out.

std::byte* Connection::Begin(size_t bytes) {
  SealPacket();
  const size_t needed = bytes + roce::kCrcBytes;
  if (batch_ != nullptr && (batch_->count == batch_->packets.size() || used_ + needed > batch_->bytes.size())) {
    Flush();
  }
  if (batch_ == nullptr) {
    batch_ = port_.TakeBatch();
    batch_->count = 0;
    used_ = 0;
  }
  open_ = std::span(batch_->bytes).subspan(used_, needed);
  return open_.data();
}

// Adds the CRC to the packet that was being written.
void Connection::SealPacket() {
  if (open_.empty()) {
    return;
  }
  const auto transport = open_.first(open_.size() - roce::kCrcBytes);
  const roce::InvariantCrc crc = flow_->CrcOf(transport);
  std::copy(crc.begin(), crc.end(), open_.last(roce::kCrcBytes).begin());
  batch_->packets[batch_->count++] = open_;
  used_ += open_.size();
  open_ = {};
}

void Connection::Flush() {
  SealPacket();
  if (batch_ != nullptr) {
    port_.Send(*flow_, *batch_);
    port_.GiveBack(std::move(batch_));
  }
}

}  // namespace termfs::driver::softnic
