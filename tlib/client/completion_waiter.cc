// SPDX-License-Identifier: Apache-2.0
#include "tlib/client/completion_waiter.h"

#include <poll.h>

#include <algorithm>

namespace termfs::tlib::client {
namespace {

using std::chrono::steady_clock;

constexpr int kVainSpins = 8;  // in a row, before spinning is cut short

Status Interrupted() { return Status::Error(EINTR, "the wait for the server was interrupted"); }

}  // namespace

Status CompletionWaiter::Sleep(driver::CompletionQueue& queue, Deadline& deadline, bool soon,
                               Interruption* interruption) {
  if (soon && ++vain_spins_ >= kVainSpins) {
    vain_spins_ = 0;
    spin_ /= 2;
  }
  const TimePoint begin = steady_clock::now();
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.At() - begin).count();
  if (left <= 0) {
    return Status::Error(ETIMEDOUT, "the server does not answer in time");
  }
  if (interruption != nullptr && interruption->requested()) {
    return Interrupted();
  }
  pollfd waited[3] = {{.fd = queue.fd(), .events = POLLIN, .revents = 0},
                      {.fd = core_.lost_fd(), .events = POLLIN, .revents = 0},
                      {.fd = interruption != nullptr ? interruption->fd() : -1, .events = POLLIN, .revents = 0}};
  if (poll(waited, 3, static_cast<int>(std::min<int64_t>(left, 10'000))) < 0 && errno != EINTR) {
    return ErrnoStatus("wait for a completion");
  }
  if (waited[1].revents != 0) {
    return core_.why_lost();
  }
  if (waited[2].revents != 0) {
    interruption->Drain();  // it may be one that came too late, for an operation that has ended
    if (interruption->requested()) {
      return Interrupted();
    }
  }
  if (soon && steady_clock::now() - begin < 2 * kMaxSpin) {
    spin_ = kMaxSpin;
    vain_spins_ = 0;
  }
  return Status::Ok();
}

}  // namespace termfs::tlib::client
