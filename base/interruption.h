// SPDX-License-Identifier: Apache-2.0
//
// Interruption: how others end the waiting of one thread. The thread names each operation that it carries out by a
// number that it never uses again; whoever wants an operation ended names the same number. So an interruption that
// comes too late ends nothing, and never the next operation.
//
//   the owner:  Begin(n) ... waits: requested()? else poll(fd()), Drain(), requested()? ... End()
//               or: takes word()'s value; requested()? else sleeps while it is the same; requested()?
//   others:     Interrupt(n)
//
// Once requested it stays so until the operation ends: every further wait of the operation ends at once, too.
//
// Thread-safety: Begin, End, Drain: the owner. requested, fd, word: the owner. Interrupt, operation: any thread.
// Errors:        of Create: no descriptor left.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "base/unique_fd.h"

namespace termfs {

class Interruption {
 public:
  static Result<std::unique_ptr<Interruption>> Create();

  // REQUIRES: operation != 0, below 2^63.
  void Begin(uint64_t operation) { state_.store(operation << 1, std::memory_order_release); }
  void End() { state_.store(0, std::memory_order_relaxed); }
  bool requested() const { return (state_.load(std::memory_order_acquire) & kRequested) != 0; }

  // Becomes readable after Interrupt, perhaps one of an operation that has ended.
  int fd() const { return event_.get(); }
  void Drain();
  // A futex of this process that changes, and is woken, after Interrupt; the same.
  const std::atomic<uint32_t>& word() const { return word_; }

  // What is being carried out; 0: nothing. It happens after what its owner did before Begin.
  uint64_t operation() const { return state_.load(std::memory_order_acquire) >> 1; }
  // False: the operation is not being carried out here.
  bool Interrupt(uint64_t operation);

 private:
  static constexpr uint64_t kRequested = 1;
  Interruption() = default;

  std::atomic<uint64_t> state_{0};  // the operation, and kRequested
  UniqueFd event_;
  std::atomic<uint32_t> word_{0};  // changes after state_
};

}  // namespace termfs
