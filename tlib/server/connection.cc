// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/connection.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/log.h"
#include "tlib/server/worker.h"

namespace termfs::tlib::server {
namespace {

// Work request ids: a pointer to a Batch (8-aligned), or a buffer's index with a tag below it.
constexpr uint64_t kTagMask = 3;
constexpr uint64_t kSendTag = 1;
constexpr uint64_t kReceiveTag = 2;
constexpr uint32_t kSendBuffers = kChannelCredits;
constexpr uint32_t kMaxBatch = 32;  // one-sided requests of one task at a time, so that tasks share the send queue

Status StatusOf(driver::WcStatus status) {
  switch (status) {
    case driver::WcStatus::kSuccess:
      return Status::Ok();
    case driver::WcStatus::kRetryExcErr:
    case driver::WcStatus::kWrFlushErr:
    case driver::WcStatus::kRnrRetryExcErr:
      return Status::Error(ENOTCONN, "the client is gone: " + std::string(driver::ToString(status)));
    default:
      return Status::Error(EIO, "the client's memory cannot be reached: " + std::string(driver::ToString(status)));
  }
}

bool IsUnreachable(driver::WcStatus status) {
  return status == driver::WcStatus::kRetryExcErr || status == driver::WcStatus::kRnrRetryExcErr;
}

Status Closing() { return Status::Error(ENOTCONN, "the connection is being closed"); }

}  // namespace

Result<std::shared_ptr<Connection>> Connection::Create(driver::ProtectionDomain& domain, driver::CompletionQueue& queue,
                                                       const std::optional<driver::NetworkPath>& path,
                                                       std::shared_ptr<Handler> handler) {
  std::shared_ptr<Connection> connection(new Connection(std::move(handler)));
  constexpr size_t kBytes = (size_t{kMaxReceive} + kSendBuffers) * kMaxMessage;
  connection->messages_ = std::make_unique<std::byte[]>(kBytes);
  ASSIGN_OR_RETURN(connection->messages_region_,
                   domain.RegisterMemory(connection->messages_.get(), kBytes, driver::Access::kLocalWrite));
  ASSIGN_OR_RETURN(connection->pair_, domain.CreateQueuePair({.send_cq = &queue,
                                                              .recv_cq = &queue,
                                                              .max_send = kMaxSend,
                                                              .max_recv = kMaxReceive,
                                                              .max_message = kMaxMessage,
                                                              .maps_files = false,
                                                              .network = path}));
  connection->number_ = connection->pair_->number();
  for (uint32_t i = 0; i < kSendBuffers; i++) {
    connection->free_sends_.push_back(i);
  }
  return connection;
}

Connection::~Connection() { TERMFS_CHECK(users_ == 0); }

Result<driver::Endpoint> Connection::Connect(driver::Endpoint remote) {
  ASSIGN_OR_RETURN(driver::Endpoint local, pair_->LocalEndpoint());
  RETURN_IF_ERROR(pair_->Connect(std::move(remote)));
  for (uint32_t i = 0; i < kMaxReceive; i++) {
    RETURN_IF_ERROR(PostReceive(i));
  }
  return local;
}

Status Connection::PostReceive(uint32_t index) {
  const driver::RecvWorkRequest receive{
      .id = (uint64_t{index} << 2) | kReceiveTag,
      .local = {.addr = receive_bytes(index), .length = kMaxMessage, .lkey = messages_region_->lkey()}};
  return pair_->PostRecv({&receive, 1});
}

Status Connection::TakeSendSlots(uint32_t count) {
  while (state_ == State::kOpen && free_slots_ < count) {
    waiting_.push_back(&Task::Current());
    Task::Park();
    std::erase(waiting_, &Task::Current());
  }
  if (state_ != State::kOpen) {
    return Closing();
  }
  free_slots_ -= count;
  return Status::Ok();
}

void Connection::FreeSendSlots(uint32_t count) {
  free_slots_ += count;
  in_flight_ -= count;
  for (Task* task : waiting_) {
    task->Unpark();  // each looks again, and waits again if it came too late
  }
}

Status Connection::Execute(std::span<driver::SendWorkRequest> requests) {
  while (!requests.empty()) {
    const auto now = requests.first(std::min<size_t>(requests.size(), kMaxBatch));
    requests = requests.subspan(now.size());
    RETURN_IF_ERROR(TakeSendSlots(static_cast<uint32_t>(now.size())));
    Batch batch{.task = &Task::Current(), .pending = static_cast<uint32_t>(now.size())};
    for (driver::SendWorkRequest& request : now) {
      request.id = reinterpret_cast<uintptr_t>(&batch);
      request.signaled = true;
    }
    in_flight_ += batch.pending;
    if (Status posted = pair_->PostSend(now); !posted.ok()) {
      FreeSendSlots(batch.pending);
      return posted;
    }
    while (batch.pending > 0) {
      Task::Park();
    }
    RETURN_IF_ERROR(StatusOf(batch.status));
  }
  return Status::Ok();
}

Status Connection::TrySend(const std::function<uint32_t(std::byte*)>& encode) {
  if (state_ != State::kOpen) {
    return Closing();
  }
  if (free_sends_.empty() || free_slots_ == 0) {
    return Status::Error(EAGAIN, "every send buffer is in use");
  }
  const uint32_t index = free_sends_.back();
  driver::SendWorkRequest send{.id = (uint64_t{index} << 2) | kSendTag, .opcode = driver::Opcode::kSend};
  send.local = {.addr = send_bytes(index), .length = encode(send_bytes(index)), .lkey = messages_region_->lkey()};
  RETURN_IF_ERROR(pair_->PostSend({&send, 1}));
  free_sends_.pop_back();
  free_slots_--;
  in_flight_++;
  return Status::Ok();
}

Status Connection::Send(const std::function<uint32_t(std::byte*)>& encode) {
  while (true) {
    Status sent = TrySend(encode);
    if (sent.code() != EAGAIN) {
      return sent;
    }
    waiting_.push_back(&Task::Current());
    Task::Park();
    std::erase(waiting_, &Task::Current());
  }
}

void Connection::OnCompletion(const driver::WorkCompletion& completion) {
  const uint64_t tag = completion.id & kTagMask;
  if (completion.status != driver::WcStatus::kSuccess) {
    Close(StatusOf(completion.status));
  }
  if (IsUnreachable(completion.status) && on_unreachable_) {
    std::exchange(on_unreachable_, nullptr)();
  }
  if (tag == kReceiveTag) {
    OnReceive(completion);
    return;
  }
  if (tag == kSendTag) {
    free_sends_.push_back(static_cast<uint32_t>(completion.id >> 2));
  } else {
    // The id is the address that was posted. NOLINTNEXTLINE(performance-no-int-to-ptr)
    auto* const batch = reinterpret_cast<Batch*>(static_cast<uintptr_t>(completion.id));
    if (batch->status == driver::WcStatus::kSuccess) {
      batch->status = completion.status;
    }
    if (--batch->pending == 0) {
      batch->task->Unpark();
    }
  }
  FreeSendSlots(1);
  MaybeGo();
}

void Connection::OnReceive(const driver::WorkCompletion& completion) {
  if (completion.status != driver::WcStatus::kSuccess || state_ != State::kOpen) {
    return;
  }
  if (completion.has_imm) {  // a WRITE: its length says nothing of the receive
    Close(Status::Error(EPROTO, "the client sent a WRITE with immediate"));
    return;
  }
  const auto index = static_cast<uint32_t>(completion.id >> 2);
  Status handled = handler_->OnMessage(*this, {receive_bytes(index), completion.byte_len});
  if (handled.ok() && state_ == State::kOpen) {
    handled = PostReceive(index);
  }
  if (!handled.ok()) {
    Close(handled);
  }
}

void Connection::Close(const Status& why) {
  if (state_ != State::kOpen) {
    return;
  }
  const bool breach = why.code() == EPROTO || why.code() == EIO;
  TERMFS_LOG(breach ? LogLevel::kWarning : LogLevel::kDebug, "queue pair {} closes: {}", number_, why.ToString());
  state_ = State::kClosing;
  pair_->Close();
  handler_->OnClosing(*this);
  for (Task* task : waiting_) {
    task->Unpark();
  }
  MaybeGo();
}

void Connection::MaybeGo() {
  if (state_ != State::kClosing || users_ != 0 || in_flight_ != 0 || going_) {
    return;
  }
  going_ = true;
  // Not here: the caller may be in the middle of something with this connection.
  Worker::Current()->Post([self = shared_from_this()] {
    self->state_ = State::kGone;
    self->pair_.reset();
    self->handler_.reset();
    for (auto* callback : {&self->on_port_gone_, &self->on_gone_}) {
      if (*callback) {
        std::exchange(*callback, nullptr)();
      }
    }
  });
}

}  // namespace termfs::tlib::server
