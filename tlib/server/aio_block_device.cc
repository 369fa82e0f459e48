// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/aio_block_device.h"

#include <array>

#include "tlib/server/aio_context.h"
#include "tlib/server/blocking_io.h"
#include "tlib/server/task.h"
#include "tlib/server/transfer.h"

namespace termfs::tlib::server {
namespace {

// The task that waits for a batch. Touched on its worker's thread only.
struct Batch {
  Task* task = nullptr;
  size_t running = 0;
};

struct Access {
  AioRequest request;
  Transfer transfer;
  bool ended = false;
};

void OnDone(AioRequest* request) {
  auto* const batch = static_cast<Batch*>(request->owner);
  if (--batch->running == 0) {
    batch->task->Unpark();
  }
}

void WaitFor(const Batch& batch) {
  while (batch.running > 0) {
    Task::Park();  // no deadline: the buffers are the kernel's until the request has ended
  }
}

void QueueOn(AioContext& context, int fd, Access& access, Batch& batch) {
  Transfer& transfer = access.transfer;
  iocb* const control = &access.request.control;
  const auto offset = static_cast<long long>(transfer.offset());
  if (transfer.count() == 1) {
    const iovec& piece = *transfer.pieces();
    if (transfer.is_read()) {
      io_prep_pread(control, fd, piece.iov_base, piece.iov_len, offset);
    } else {
      io_prep_pwrite(control, fd, piece.iov_base, piece.iov_len, offset);
    }
  } else if (transfer.is_read()) {
    io_prep_preadv(control, fd, transfer.pieces(), transfer.count(), offset);
  } else {
    io_prep_pwritev(control, fd, transfer.pieces(), transfer.count(), offset);
  }
  access.request.done = OnDone;
  access.request.owner = &batch;
  batch.running++;
  context.Queue(&access.request);
}

void RunAccesses(AioContext& context, int fd, std::span<Access> accesses) {
  Batch batch{.task = &Task::Current(), .running = 0};
  for (bool again = true; again;) {
    for (Access& access : accesses) {
      if (!access.ended) {
        QueueOn(context, fd, access, batch);
      }
    }
    WaitFor(batch);
    again = false;
    for (Access& access : accesses) {
      if (!access.ended) {
        access.ended = access.transfer.Advance(access.request.result);
        again |= !access.ended;
      }
    }
  }
}

}  // namespace

Status AioBlockDevice::Resize(uint64_t bytes) {
  ASSIGN_OR_RETURN(const uint64_t now, ResizeDeviceFile(file_, size(), bytes));
  bytes_.store(now, std::memory_order_relaxed);
  return Status::Ok();
}

void AioBlockDevice::Run(std::span<BlockIo> ios) {
  if (Task::InTask()) {
    RunInTask(ios);
  } else {
    RunBlocking(file_.fd.get(), file_.start, ios);
  }
}

void AioBlockDevice::RunInTask(std::span<BlockIo> ios) {
  AioContext* const context = AioContext::OfThread();
  TERMFS_CHECK(context != nullptr);
  if (ios.size() == 1) {  // a miss of a page: no allocation
    Access access;
    access.transfer = Transfer(ios[0], file_.start);
    RunAccesses(*context, file_.fd.get(), {&access, 1});
    return;
  }
  std::vector<Access> accesses(ios.size());
  for (size_t i = 0; i < ios.size(); i++) {
    accesses[i].transfer = Transfer(ios[i], file_.start);
  }
  RunAccesses(*context, file_.fd.get(), accesses);
}

Status AioBlockDevice::Flush() {
  if (!Task::InTask()) {
    return FlushBlocking(file_.fd.get());
  }
  AioContext* const context = AioContext::OfThread();
  TERMFS_CHECK(context != nullptr);
  Batch batch{.task = &Task::Current(), .running = 1};
  AioRequest request;
  io_prep_fdsync(&request.control, file_.fd.get());
  request.done = OnDone;
  request.owner = &batch;
  context->Queue(&request);
  WaitFor(batch);
  if (request.result < 0) {
    return Status::Errno(static_cast<int>(-request.result), "flush the device");
  }
  return Status::Ok();
}

}  // namespace termfs::tlib::server
