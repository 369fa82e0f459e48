// SPDX-License-Identifier: Apache-2.0
#include "fs/client/invalidator.h"

#include "base/log.h"
#include "fs/proto/codec.h"
#include "fs/proto/opcodes.h"

namespace termfs::fs::client {

Invalidator::Invalidator(ServerLink& link, std::unique_ptr<VolumeLane> lane)
    : link_(link), lane_(std::move(lane)), thread_([this] { Run(); }) {}

Invalidator::~Invalidator() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  thread_.join();
}

void Invalidator::Push(uint64_t ticket, uint64_t generation, std::function<bool()> work) {
  MutexLock lock(mutex_);
  queue_.push_back({ticket, generation, std::move(work)});
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
    const bool done = item.work();
    if (item.ticket == 0 || !done) {
      continue;
    }
    wire::TicketT ticket;
    ticket.ticket = item.ticket;
    const auto encoded = Encode<wire::Ticket>(ticket);
    const Status told =
        link_.CallIn(item.generation, *lane_, {.opcode = kFsInvalidated, .body = encoded, .in = {}, .out = {}});
    if (!told.ok() && told.code() != ENOTCONN) {  // ENOTCONN: the session is gone, and with it who waits
      LOG_WARNING("telling the server of what the kernel has dropped: {}", told.ToDebugString());
    }
  }
}

}  // namespace termfs::fs::client
