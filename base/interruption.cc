// SPDX-License-Identifier: Apache-2.0
#include "base/interruption.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "base/futex.h"

namespace termfs {

Result<std::unique_ptr<Interruption>> Interruption::Create() {
  std::unique_ptr<Interruption> interruption(new Interruption);
  interruption->event_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!interruption->event_.valid()) {
    return ErrnoStatus("create an eventfd");
  }
  return interruption;
}

void Interruption::Drain() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(event_.get(), &count, sizeof(count));  // nothing there: drained before
}

bool Interruption::Interrupt(uint64_t operation) {
  uint64_t running = operation << 1;
  if (!state_.compare_exchange_strong(running, running | kRequested, std::memory_order_acq_rel)) {
    return running == ((operation << 1) | kRequested);
  }
  word_.fetch_add(1, std::memory_order_release);
  WakeFutex(word_, FutexScope::kProcess);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = write(event_.get(), &one, sizeof(one));  // full: it is readable anyway
  return true;
}

}  // namespace termfs
