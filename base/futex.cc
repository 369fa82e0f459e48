// SPDX-License-Identifier: Apache-2.0
#include "base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>

#include "base/check.h"

namespace termfs {
namespace {

constexpr size_t kMostWords = 4;
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);

}  // namespace

bool FutexWaitsForSeveral() {
  // No words at all are an error of their own where the call is known.
  static const bool known = syscall(SYS_futex_waitv, nullptr, 0, 0, nullptr, CLOCK_MONOTONIC) < 0 && errno == EINVAL;
  return known;
}

bool WaitForFutexes(std::span<const FutexWait> words, std::chrono::steady_clock::time_point deadline) {
  TERMFS_CHECK(words.size() <= kMostWords);
  std::array<futex_waitv, kMostWords> waiters{};
  for (size_t i = 0; i < words.size(); i++) {
    waiters[i].val = words[i].expected;
    waiters[i].uaddr = reinterpret_cast<uint64_t>(words[i].word);
    waiters[i].flags = FUTEX_32 | (words[i].scope == FutexScope::kProcess ? FUTEX_PRIVATE_FLAG : 0);
  }
  // steady_clock is CLOCK_MONOTONIC here.
  const auto since_boot = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch()).count();
  const timespec until{.tv_sec = since_boot / 1'000'000'000, .tv_nsec = since_boot % 1'000'000'000};
  return syscall(SYS_futex_waitv, waiters.data(), words.size(), 0, &until, CLOCK_MONOTONIC) >= 0 || errno == EAGAIN ||
         errno == ETIMEDOUT || errno == EINTR;
}

void WakeFutex(const std::atomic<uint32_t>& word, FutexScope scope) {
  const int operation = FUTEX_WAKE | (scope == FutexScope::kProcess ? FUTEX_PRIVATE_FLAG : 0);
  // It fails only where nobody can sleep.
  [[maybe_unused]] const long woken = syscall(SYS_futex, &word, operation, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace termfs
