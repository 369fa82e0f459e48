// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/callback_peer.h"

#include <string>

#include "tlib/rpc/decode.h"

namespace termfs::tlib::server {
namespace {

Status Lost() { return Status::Error(ENOTCONN, "the client is gone"); }

}  // namespace

Result<std::vector<std::byte>> CallbackPeer::Call(uint16_t opcode, std::span<const std::byte> body,
                                                  std::chrono::milliseconds timeout) {
  if (body.size() > kMaxMessage - sizeof(RequestHeader)) {
    return Status::Error(EMSGSIZE, "callback too long");
  }
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  auto pending = std::make_shared<Pending>();
  pending->opcode = opcode;
  pending->body.assign(body.begin(), body.end());
  {
    MutexLock lock(pending->mutex);
    pending->caller = &Task::Current();
  }
  worker_.Post([self = shared_from_this(), pending] {
    self->queue_.push_back(pending);
    self->Pump();
  });
  while (true) {
    const bool in_time = Task::ParkUntil(deadline);
    MutexLock lock(pending->mutex);
    if (pending->done) {
      if (!pending->error.ok()) {
        return pending->error;
      }
      return std::move(pending->reply);
    }
    if (!in_time) {
      pending->caller = nullptr;
      return Status::Error(ETIMEDOUT, "the client does not answer");
    }
  }
}

void CallbackPeer::Finish(Pending& pending, Status error, std::span<const std::byte> reply) {
  MutexLock lock(pending.mutex);
  if (pending.caller == nullptr) {
    return;
  }
  pending.done = true;
  pending.error = std::move(error);
  pending.reply.assign(reply.begin(), reply.end());
  pending.caller->Unpark();
}

bool CallbackPeer::Abandoned(Pending& pending) {
  MutexLock lock(pending.mutex);
  return pending.caller == nullptr;
}

void CallbackPeer::Pump() {
  while (!queue_.empty()) {
    const std::shared_ptr<Pending> next = queue_.front();
    if (closed_ || Abandoned(*next)) {
      queue_.pop_front();
      Finish(*next, Lost(), {});
      continue;
    }
    if (in_flight_.size() >= kChannelCredits) {
      return;  // until a reply comes
    }
    const uint64_t call = next_call_++;
    Status sent = SendCall(call, *next);
    if (sent.code() == EAGAIN) {  // a SEND's completion has yet to be polled
      worker_.Post([self = shared_from_this()] { self->Pump(); });
      return;
    }
    queue_.pop_front();
    if (sent.ok()) {
      in_flight_.emplace(call, next);
    } else {
      Finish(*next, std::move(sent), {});
    }
  }
}

Status CallbackPeer::SendCall(uint64_t call, const Pending& pending) {
  const RequestHeader header{.call = call,
                             .epoch = epoch_,
                             .opcode = pending.opcode,
                             .body_bytes = static_cast<uint32_t>(pending.body.size()),
                             .in = {},
                             .out = {}};
  return connection_->TrySend([&](std::byte* to) { return EncodeMessage(header, pending.body, to); });
}

Status CallbackPeer::OnMessage(Connection& connection, std::span<const std::byte> message) {
  ASSIGN_OR_RETURN(const DecodedReply reply, DecodeReply(message, connection.seal() != nullptr));
  const auto found = in_flight_.find(reply.header.call);
  if (found == in_flight_.end()) {
    return Status::Error(EPROTO, "the client answers what nobody asked");
  }
  const std::shared_ptr<Pending> pending = std::move(found->second);
  in_flight_.erase(found);
  Status error;
  if (reply.header.error != 0) {
    error = Status::Error(reply.header.error,
                          std::string(reinterpret_cast<const char*>(reply.body.data()), reply.body.size()));
  }
  Finish(*pending, std::move(error), reply.body);
  Pump();
  return Status::Ok();
}

void CallbackPeer::OnClosing(Connection&) {
  closed_ = true;
  for (auto& [call, pending] : in_flight_) {
    Finish(*pending, Lost(), {});
  }
  in_flight_.clear();
  Pump();
  connection_.reset();
}

}  // namespace termfs::tlib::server
