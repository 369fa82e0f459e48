// SPDX-License-Identifier: Apache-2.0
#include "fs/client/invalidator.h"

#include "base/log.h"
#include "fs/proto/codec.h"
#include "fs/proto/opcodes.h"

namespace termfs::fs::client {

Invalidator::Invalidator(KernelCache& cache, std::unique_ptr<tlib::client::Channel> channel)
    : cache_(cache), channel_(std::move(channel)), thread_([this] { Run(); }) {}

Invalidator::~Invalidator() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  thread_.join();
}

void Invalidator::Push(const InvalidateBody& body) {
  MutexLock lock(mutex_);
  queue_.push_back(body);
  wake_.NotifyAll();
}

void Invalidator::Run() {
  while (true) {
    InvalidateBody body;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !stopping_) {
        wake_.WaitFor(mutex_, std::chrono::seconds(1));
      }
      if (stopping_) {
        return;  // the session ends, and with it what the server waits for
      }
      body = queue_.front();
      queue_.pop_front();
    }
    cache_.InvalidateInode(body.ino, body.offset, body.length);
    wire::TicketT ticket;
    ticket.ticket = body.ticket;
    const auto encoded = Encode<wire::Ticket>(ticket);
    const auto reply = channel_->Call({.opcode = kFsInvalidated, .body = encoded, .in = {}, .out = {}});
    if (!reply.ok() && reply.status().code() != ENOTCONN) {
      LOG_WARNING("telling the server of dropped pages: {}", reply.status().ToDebugString());
    }
  }
}

}  // namespace termfs::fs::client
