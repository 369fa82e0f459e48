// SPDX-License-Identifier: Apache-2.0
//
// Futexes, by themselves: a word of memory to sleep on until it changes, and waking those who do. What condition
// variables are made of; here for words that are shared with another process, and for sleeping on several at once.
//
// Thread-safety: any thread. Ownership: words are the caller's, and stay for as long as somebody sleeps on them.
// Errors:        none that count: a sleep may always end early. Look again.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>

namespace termfs {

enum class FutexScope : uint8_t {
  kProcess,  // sleepers and wakers are threads of this process
  kHost,     // the word lies in memory that processes share
};

struct FutexWait {
  const std::atomic<uint32_t>* word = nullptr;
  uint32_t expected = 0;
  FutexScope scope = FutexScope::kProcess;
};

// Whether the kernel can sleep on several words (Linux 5.16, and no filter in the way).
bool FutexWaitsForSeveral();

// Sleeps while every word holds what is expected of it, until one of them is woken, the deadline, or a signal. The
// check and falling asleep are one step: who changes a word first and wakes its sleepers then is never missed.
// False: it cannot be done. REQUIRES: FutexWaitsForSeveral().
bool WaitForFutexes(std::span<const FutexWait> words, std::chrono::steady_clock::time_point deadline);

// Wakes all who sleep on the word.
void WakeFutex(const std::atomic<uint32_t>& word, FutexScope scope);

}  // namespace termfs
