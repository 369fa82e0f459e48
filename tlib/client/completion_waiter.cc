// SPDX-License-Identifier: Apache-2.0
#include "tlib/client/completion_waiter.h"

#include <poll.h>

#include <algorithm>
#include <array>

namespace termfs::tlib::client {
namespace {

using std::chrono::steady_clock;

constexpr int kVainSpins = 8;  // in a row, before spinning is cut short
constexpr std::chrono::seconds kLongestSleep{10};

Status Interrupted() { return Status::Error(EINTR, "the wait for the server was interrupted"); }

}  // namespace

// Where the queue has a word the thread sleeps on that, on the session's and on the interruption's at once.
bool CompletionWaiter::SleepOnWords(const driver::WaitWord& word, TimePoint until, const Interruption* interruption,
                                    uint32_t interruptions) const {
  std::array<FutexWait, 3> words = {
      FutexWait{.word = word.word, .expected = word.value, .scope = FutexScope::kHost},
      FutexWait{.word = &core_.lost_word(), .expected = 0, .scope = FutexScope::kProcess},
  };
  size_t count = 2;
  if (interruption != nullptr) {
    words[count++] = {.word = &interruption->word(), .expected = interruptions, .scope = FutexScope::kProcess};
  }
  return WaitForFutexes(std::span(words).first(count), until);
}

Status CompletionWaiter::SleepOnDescriptors(const driver::CompletionQueue& queue, TimePoint until,
                                            Interruption* interruption) const {
  pollfd waited[3] = {{.fd = queue.fd(), .events = POLLIN, .revents = 0},
                      {.fd = core_.lost_fd(), .events = POLLIN, .revents = 0},
                      {.fd = interruption != nullptr ? interruption->fd() : -1, .events = POLLIN, .revents = 0}};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - steady_clock::now()).count();
  if (poll(waited, 3, static_cast<int>(std::max<int64_t>(left, 0))) < 0 && errno != EINTR) {
    return ErrnoStatus("wait for a completion");
  }
  if (waited[2].revents != 0) {
    interruption->Drain();  // it may be one that came too late, for an operation that has ended
  }
  return Status::Ok();
}

Status CompletionWaiter::Sleep(driver::CompletionQueue& queue, const driver::WaitWord& word, TimePoint deadline,
                               bool soon, Interruption* interruption) {
  if (soon && ++vain_spins_ >= kVainSpins) {
    vain_spins_ = 0;
    spin_ /= 2;
  }
  const TimePoint begin = steady_clock::now();
  if (begin >= deadline) {
    return Status::Error(ETIMEDOUT, "the server does not answer in time");
  }
  // Before the look at `requested`: an interruption that comes after it changes the word.
  const uint32_t interruptions = interruption != nullptr ? interruption->word().load(std::memory_order_acquire) : 0;
  if (interruption != nullptr && interruption->requested()) {
    return Interrupted();
  }
  const TimePoint until = std::min(deadline, begin + kLongestSleep);
  if (word.word == nullptr) {
    RETURN_IF_ERROR(SleepOnDescriptors(queue, until, interruption));
  } else if (!SleepOnWords(word, until, interruption, interruptions)) {
    return Status::Error(EIO, "wait for a completion");
  }
  if (core_.lost_word().load(std::memory_order_acquire) != 0) {
    return core_.why_lost();
  }
  if (interruption != nullptr && interruption->requested()) {
    return Interrupted();
  }
  if (soon && steady_clock::now() - begin < 2 * kMaxSpin) {
    spin_ = kMaxSpin;
    vain_spins_ = 0;
  }
  return Status::Ok();
}

}  // namespace termfs::tlib::client
