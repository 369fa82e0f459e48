// SPDX-License-Identifier: Apache-2.0
#include "fs/client/invalidator.h"

#include "base/log.h"
#include "fs/proto/codec.h"
#include "fs/proto/opcodes.h"

namespace termfs::fs::client {

Invalidator::Invalidator(std::unique_ptr<tlib::client::Channel> channel)
    : channel_(std::move(channel)), thread_([this] { Run(); }) {}

Invalidator::~Invalidator() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  thread_.join();
}

void Invalidator::Push(uint64_t ticket, std::function<void()> work) {
  MutexLock lock(mutex_);
  queue_.push_back({ticket, std::move(work)});
  wake_.NotifyAll();
}

void Invalidator::Run() {
  while (true) {
    Item item;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !stopping_) {
        wake_.WaitFor(mutex_, std::chrono::seconds(1));
      }
      if (stopping_) {
        return;  // the session ends, and with it what the server waits for
      }
      item = std::move(queue_.front());
      queue_.pop_front();
    }
    item.work();
    wire::TicketT ticket;
    ticket.ticket = item.ticket;
    const auto encoded = Encode<wire::Ticket>(ticket);
    const auto reply = channel_->Call({.opcode = kFsInvalidated, .body = encoded, .in = {}, .out = {}});
    if (!reply.ok() && reply.status().code() != ENOTCONN) {
      LOG_WARNING("telling the server of what the kernel has dropped: {}", reply.status().ToDebugString());
    }
  }
}

}  // namespace termfs::fs::client
