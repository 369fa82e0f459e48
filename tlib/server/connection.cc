// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/connection.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/log.h"
#include "tlib/server/worker.h"

namespace termfs::tlib::server {
namespace {

// Work request ids of sends: a pointer to a Batch (8-aligned), or a buffer's number with a tag below it.
constexpr uint64_t kTagMask = 3;
constexpr uint64_t kSendTag = 1;
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

Result<std::shared_ptr<Connection>> Connection::Create(const Shared& shared,
                                                       const std::optional<driver::NetworkPath>& path,
                                                       std::unique_ptr<MessageSeal> seal,
                                                       std::shared_ptr<Handler> handler) {
  std::shared_ptr<Connection> connection(
      new Connection(shared.buffers, path.has_value(), std::move(seal), std::move(handler)));
  ASSIGN_OR_RETURN(connection->pair_, shared.domain.CreateQueuePair({.send_cq = &shared.queue,
                                                                     .recv_cq = &shared.queue,
                                                                     .shared_receives = &shared.receives,
                                                                     .max_send = kMaxSend,
                                                                     .max_recv = kMaxWaiting,
                                                                     .max_message = MaxSend(path.has_value()),
                                                                     .maps_files = false,
                                                                     .network = path}));
  connection->number_ = connection->pair_->number();
  return connection;
}

Connection::~Connection() { TERMFS_CHECK(users_ == 0); }

Result<driver::Endpoint> Connection::Connect(driver::Endpoint remote) {
  ASSIGN_OR_RETURN(driver::Endpoint local, pair_->LocalEndpoint());
  RETURN_IF_ERROR(pair_->Connect(std::move(remote)));
  return local;
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
    Await(batch);
    RETURN_IF_ERROR(StatusOf(batch.status));
  }
  return Status::Ok();
}

void Connection::Await(const Batch& batch) {
  if (network_) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (batch.pending > 0 && Task::ParkUntil(deadline)) {
    }
    if (batch.pending > 0) {
      Close(Status::Error(ENOTCONN, "the client keeps what it asked for waiting for too long"));
      TellUnreachable(true);
    }
  }
  while (batch.pending > 0) {  // the queue pair is this host's, or has ended, so it ends everything
    Task::Park();
  }
}

Status Connection::TrySend(const std::function<uint32_t(std::byte*)>& encode) {
  if (state_ != State::kOpen) {
    return Closing();
  }
  if (sending_ == kMaxSending || free_slots_ == 0) {
    return Status::Error(EAGAIN, "as many messages are being sent as may be");
  }
  ASSIGN_OR_RETURN(const uint32_t buffer, buffers_.Take());
  std::byte* const bytes = buffers_.data(buffer);
  driver::SendWorkRequest send{.id = (uint64_t{buffer} << 2) | kSendTag, .opcode = driver::Opcode::kSend};
  send.local = {.addr = bytes, .length = encode(bytes), .lkey = buffers_.lkey(buffer)};
  Result<uint32_t> sealed = seal_ != nullptr ? seal_->Seal(bytes, send.local.length) : send.local.length;
  send.local.length = sealed.ok() ? *sealed : 0;
  if (Status posted = sealed.ok() ? pair_->PostSend({&send, 1}) : sealed.status(); !posted.ok()) {
    buffers_.Give(buffer);
    return posted;
  }
  sending_++;
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

void Connection::Fail(driver::WcStatus status) {
  Close(StatusOf(status));
  TellUnreachable(IsUnreachable(status));
}

void Connection::TellUnreachable(bool is) {
  if (is && on_unreachable_) {
    std::exchange(on_unreachable_, nullptr)();
  }
}

void Connection::OnCompletion(const driver::WorkCompletion& completion) {
  if (completion.status != driver::WcStatus::kSuccess) {
    Fail(completion.status);
  }
  if ((completion.id & kTagMask) == kSendTag) {
    buffers_.Give(static_cast<uint32_t>(completion.id >> 2));
    sending_--;
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

Status Connection::Take(std::span<std::byte> message) {
  if (message.empty()) {
    return handler_->OnRing();
  }
  if (seal_ != nullptr) {
    ASSIGN_OR_RETURN(message, seal_->Open(message));
  }
  return handler_->OnMessage(*this, message);
}

void Connection::OnReceive(const driver::WorkCompletion& completion, std::span<std::byte> message) {
  if (completion.status != driver::WcStatus::kSuccess) {
    Fail(completion.status);
    return;
  }
  if (state_ != State::kOpen) {
    return;
  }
  const Status taken =
      completion.has_imm ? Status::Error(EPROTO, "the client sent a WRITE with immediate") : Take(message);
  if (!taken.ok()) {
    Close(taken);
  }
}

void Connection::Close(const Status& why) {
  if (state_ != State::kOpen) {
    return;
  }
  const bool breach = why.code() == EPROTO || why.code() == EIO || why.code() == EBADMSG;
  TERMFS_LOG(breach ? LogLevel::kWarning : LogLevel::kDebug, "queue pair {} closes: {}", number_, why.ToString());
  state_ = State::kClosing;
  pair_->Close();
  handler_->OnClosing(*this);
  for (Task* task : waiting_) {
    task->Unpark();
  }
  TellUnreachable(why.code() == EBADMSG);
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
