// SPDX-License-Identifier: Apache-2.0
#include "mount/fuse_ring.h"

#include <liburing.h>
#include <poll.h>

#include <cstring>

#include "base/check.h"
#include "mount/fuse_command_header.h"

namespace termfs::mount {
namespace {

// Of <linux/fuse.h> 7.42, newer than Debian 12's.
enum Command : uint32_t { kRegister = 1, kCommitAndFetch = 2 };

struct CommandArgument {  // in the second half of a submission
  uint64_t flags;
  uint64_t commit_id;
  uint16_t queue;
  uint8_t padding[6];
};

Status RingError(int negative, const char* what) { return Status::Errno(-negative, what); }

}  // namespace

Result<std::unique_ptr<FuseRing>> FuseRing::Create(int device, unsigned commands, Sleep sleep) {
  std::unique_ptr<FuseRing> ring(new FuseRing);
  RETURN_IF_ERROR(ring->Init(device, commands, sleep));
  return ring;
}

Status FuseRing::Init(int device, unsigned commands, Sleep sleep) {
  auto ring = std::make_unique<io_uring>();
  io_uring_params parameters{};
  // The thread that submits is the one that waits, and the kernel's part of a request runs when it waits in the ring,
  // or sees in shared memory that there is something to run. A thread in poll would not be woken for that; so there it
  // runs whenever the thread enters the kernel, and a sleeping one is woken.
  parameters.flags = IORING_SETUP_SQE128 | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_TASKRUN_FLAG |
                     (sleep == Sleep::kTake ? IORING_SETUP_DEFER_TASKRUN : IORING_SETUP_COOP_TASKRUN);
  if (const int error = io_uring_queue_init_params(commands + 1, ring.get(), &parameters); error < 0) {
    return RingError(error, error == -ENOMEM ? "set up an io_uring: raise the memlock limit" : "set up an io_uring");
  }
  ring_ = std::move(ring);
  if (const int error = io_uring_register_files(ring_.get(), &device, 1); error < 0) {
    return RingError(error, "give the FUSE device to an io_uring");
  }
  io_uring_register_ring_fd(ring_.get());  // saves a look-up for each call; where it cannot be, that is all
  return Status::Ok();
}

FuseRing::~FuseRing() {
  if (ring_ != nullptr) {
    io_uring_queue_exit(ring_.get());
  }
}

int FuseRing::fd() const { return ring_->ring_fd; }

io_uring_sqe* FuseRing::Place() {
  io_uring_sqe* sqe = io_uring_get_sqe(ring_.get());
  TERMFS_CHECK(sqe != nullptr);  // each command has one at most, and the wake-up
  std::memset(sqe, 0, 2 * sizeof(*sqe));
  return sqe;
}

void FuseRing::Prepare(FuseCommand& command, uint32_t what) {
  io_uring_sqe* const sqe = Place();
  sqe->opcode = IORING_OP_URING_CMD;
  sqe->flags = IOSQE_FIXED_FILE;
  sqe->fd = 0;
  sqe->cmd_op = what;
  command.last_ = what;
  const CommandArgument argument{.flags = 0,
                                 .commit_id = command.header_->entry.commit_id,
                                 .queue = static_cast<uint16_t>(command.queue_),
                                 .padding = {}};
  std::memcpy(sqe->cmd, &argument, sizeof(argument));
  if (what == kRegister) {
    sqe->addr = reinterpret_cast<uint64_t>(command.memory_);
    sqe->len = 2;
  }
  io_uring_sqe_set_data(sqe, &command);
}

void FuseRing::WakeBy(int fd) {
  wake_ = fd;
  io_uring_sqe* const sqe = Place();
  io_uring_prep_poll_multishot(sqe, fd, POLLIN);
  io_uring_sqe_set_data(sqe, nullptr);
}

Status FuseRing::Register(FuseCommand& command) {
  TERMFS_CHECK(command.buffer_ != nullptr);
  command.header_->entry.commit_id = 0;
  command.answered_ = false;
  Prepare(command, kRegister);
  if (const int submitted = io_uring_submit(ring_.get()); submitted < 0) {
    return RingError(submitted, "register with the kernel's FUSE");
  }
  io_uring_cqe* cqe = nullptr;
  if (io_uring_peek_cqe(ring_.get(), &cqe) == 0 && cqe->res < 0) {  // otherwise it waits for its first request
    const int error = cqe->res;
    io_uring_cqe_seen(ring_.get(), cqe);
    return RingError(error, "register with the kernel's FUSE");
  }
  return Status::Ok();
}

void FuseRing::Send(FuseCommand& command) {
  TERMFS_CHECK(command.answered_);
  command.answered_ = false;
  Prepare(command, kCommitAndFetch);
}

Result<size_t> FuseRing::Take(std::span<Arrival> arrivals, bool wait) {
  io_uring* const ring = ring_.get();
  io_uring_cqe* cqe = nullptr;
  const bool there = io_uring_peek_cqe(ring, &cqe) == 0;
  const bool to_run = (*ring->sq.kflags & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0;
  const bool sleep = wait && !there && !to_run;
  if (sleep || to_run || io_uring_sq_ready(ring) != 0) {
    const int entered = sleep ? io_uring_submit_and_wait(ring, 1) : io_uring_submit_and_get_events(ring);
    if (entered < 0 && entered != -EINTR && entered != -EAGAIN && entered != -EBUSY) {
      return RingError(entered, "wait for FUSE requests");
    }
  }
  size_t count = 0;
  while (count < arrivals.size() && io_uring_peek_cqe(ring, &cqe) == 0) {
    const io_uring_cqe seen = *cqe;
    io_uring_cqe_seen(ring, cqe);
    count += Accept(seen, arrivals[count]) ? 1 : 0;
  }
  if (count == 0) {
    Submit();  // what Accept sends once more
  }
  return count;
}

void FuseRing::Submit() {
  if (io_uring_sq_ready(ring_.get()) != 0) {
    io_uring_submit(ring_.get());  // what fails stays, and goes with the next call, which says so
  }
}

bool FuseRing::Accept(const io_uring_cqe& cqe, Arrival& arrival) {
  auto* const command = static_cast<FuseCommand*>(io_uring_cqe_get_data(&cqe));
  if (command == nullptr) {
    if ((cqe.flags & IORING_CQE_F_MORE) == 0) {
      WakeBy(wake_);
    }
    arrival = {};
    return true;
  }
  switch (cqe.res) {
    case 0:
      arrival = {.command = command, .event = Event::kRequest};
      return true;
    case -EINTR:
    case -EAGAIN:
      Prepare(*command, command->last_);  // once more
      return false;
    case -ECONNABORTED:
    case -ECANCELED:
      arrival = {.command = command, .event = Event::kEnded, .error = ENOTCONN};
      return true;
    default:
      arrival = {.command = command, .event = Event::kEnded, .error = cqe.res < 0 ? -cqe.res : EPROTO};
      return true;
  }
}

}  // namespace termfs::mount
