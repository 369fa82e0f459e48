// SPDX-License-Identifier: Apache-2.0
//
// FuseRing: one thread's io_uring for FUSE (Linux 6.14 and later). It carries FuseCommands to the kernel and back: a
// reply and the wait for the next request are one system call, and one call does for several commands. A command comes
// back to the ring that carried it last. See "One ring for a thread".
//
//   Create - Register(command) - { Take - command.Put - Send(command) - Take ... } - destroyed
//
// Thread-safety: everything, construction and destruction included, on the thread that uses it.
// Ownership:     borrows the FUSE device; commands outlive their time with it.
// Errors:        errno of io_uring or of the kernel's FUSE: EOPNOTSUPP where it does not speak io_uring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "mount/fuse_command.h"

struct io_uring;
struct io_uring_sqe;
struct io_uring_cqe;

namespace termfs::mount {

class FuseRing {
 public:
  enum class Event : uint8_t {
    kRequest,  // the command's Head() and payload say what
    kEnded,    // the command is not in the kernel any more, and has no request: `error` says why
    kWoken,    // by the descriptor given to WakeBy
  };
  struct Arrival {
    FuseCommand* command = nullptr;  // null: kWoken
    Event event = Event::kWoken;
    int error = 0;  // ENOTCONN and the like: the connection has ended
  };

  // Where its thread sleeps until something arrives: kPoll costs more, see Init.
  enum class Sleep : uint8_t { kTake, kPoll };

  // `commands`: how many it carries at most.
  static Result<std::unique_ptr<FuseRing>> Create(int device, unsigned commands, Sleep sleep = Sleep::kTake);
  // The kernel takes back what it carries, soon; until then the memory of commands must be there.
  ~FuseRing();
  FuseRing(const FuseRing&) = delete;
  FuseRing& operator=(const FuseRing&) = delete;

  // Hands a new command to the kernel. REQUIRES: its UseBuffer succeeded, the kernel has its answer to INIT.
  Status Register(FuseCommand& command);
  // The command's reply goes with the next Take or Submit, and the command waits for a request. It may have come by
  // another ring.
  void Send(FuseCommand& command);
  // Take returns kWoken each time somebody has written to the eventfd `fd`, which is of the caller. Once.
  void WakeBy(int fd);
  // What has arrived, up to `arrivals`; `wait`: at least one, but none when a signal comes.
  Result<size_t> Take(std::span<Arrival> arrivals, bool wait);
  void Submit();
  // For poll, with kPoll: readable when Take would return something. REQUIRES: nothing was sent since Take.
  int fd() const;

 private:
  FuseRing() = default;
  Status Init(int device, unsigned commands, Sleep sleep);
  io_uring_sqe* Place();
  void Prepare(FuseCommand& command, uint32_t what);
  // False: nothing for the caller.
  bool Accept(const io_uring_cqe& cqe, Arrival& arrival);

  std::unique_ptr<io_uring> ring_;  // null: not set up
  int wake_ = -1;
};

}  // namespace termfs::mount
