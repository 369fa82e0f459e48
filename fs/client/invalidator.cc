// SPDX-License-Identifier: Apache-2.0
#include "fs/client/invalidator.h"

#include "base/log.h"
#include "fs/proto/codec.h"
#include "fs/proto/opcodes.h"

namespace termfs::fs::client {

Invalidator::Invalidator(KernelCache& cache, ServerLink& link, std::unique_ptr<VolumeLane> lane)
    : cache_(cache), link_(link), lane_(std::move(lane)), thread_([this] { Run(); }) {}

Invalidator::~Invalidator() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  thread_.join();
}

void Invalidator::Push(const InvalidateBody& body, uint64_t generation) {
  MutexLock lock(mutex_);
  queue_.push_back({body, generation});
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
      item = queue_.front();
      queue_.pop_front();
    }
    const InvalidateBody& body = item.body;
    cache_.InvalidateInode(body.ino, body.offset, body.length);
    if (body.ticket == 0) {
      continue;
    }
    wire::TicketT ticket;
    ticket.ticket = body.ticket;
    const auto encoded = Encode<wire::Ticket>(ticket);
    const Status told =
        link_.CallIn(item.generation, *lane_, {.opcode = kFsInvalidated, .body = encoded, .in = {}, .out = {}});
    if (!told.ok() && told.code() != ENOTCONN) {  // ENOTCONN: the session is gone, and with it who waits
      LOG_WARNING("telling the server of dropped pages: {}", told.ToDebugString());
    }
  }
}

}  // namespace termfs::fs::client
