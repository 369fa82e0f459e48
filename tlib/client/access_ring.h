// SPDX-License-Identifier: Apache-2.0
//
// AccessRing: the page numbers that one thread has read, or a sample of them, on their way to the thread that sums them
// up. A push costs a store and an increment. When the ring is full the access is dropped: the reader empties it many
// times a period, so what it sees of a very fast reader is a sample, too. Of a ring that nothing has been pushed into
// for a while the reader may wait for the bell, which the next Push rings.
//
// Thread-safety: Push from one thread, Drain from one other; SetSampling and sampling from any.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "tlib/client/activity_bell.h"

namespace termfs::tlib::client {

class AccessRing {
 public:
  static constexpr uint32_t kEntries = 1U << 14;

  void Push(uint32_t page) {
    if (skip_ > 0) {
      skip_--;
      return;
    }
    const uint32_t sampling = sampling_.load(std::memory_order_relaxed);
    if (sampling != 1) {
      SkipOrRing(sampling);
    }
    const uint32_t head = head_.load(std::memory_order_relaxed);
    if (head - known_tail_ >= kEntries) [[unlikely]] {
      known_tail_ = tail_.load(std::memory_order_acquire);
      if (head - known_tail_ >= kEntries) {
        return;
      }
    }
    entries_[head % kEntries] = page;
    head_.store(head + 1, std::memory_order_release);  // pairs with Drain's acquire
  }

  // Calls `take` with every page number pushed so far; returns how many there were.
  template <typename Take>
  uint32_t Drain(Take&& take) {
    const uint32_t head = head_.load(std::memory_order_acquire);
    uint32_t tail = tail_.load(std::memory_order_relaxed);
    const uint32_t count = head - tail;
    for (; tail != head; tail++) {
      take(entries_[tail % kEntries]);
    }
    tail_.store(tail, std::memory_order_release);  // pairs with Push's acquire: the entries may be overwritten
    return count;
  }

  // How many accesses an entry stands for: only a sample is kept.
  void SetSampling(uint32_t sampling) { sampling_.store(sampling, std::memory_order_relaxed); }
  uint32_t sampling() const { return std::max(sampling_.load(std::memory_order_relaxed), 1U); }
  // The next Push rings `bell`, which outlives the ring, until SetSampling. One that is made at the same time may not.
  void RingAtNextPush(ActivityBell* bell) {
    bell_.store(bell, std::memory_order_relaxed);
    sampling_.store(kRings, std::memory_order_release);  // pairs with SkipOrRing's acquire
  }

 private:
  static constexpr uint32_t kRings = 0;

  void SkipOrRing(uint32_t sampling) {
    if (sampling != kRings) {
      skip_ = Random() % (2 * sampling - 1);  // at random, as accesses come in patterns
    } else if (sampling_.exchange(1, std::memory_order_acquire) == kRings) {
      bell_.load(std::memory_order_relaxed)->Ring();
    }
  }
  uint32_t Random() {  // xorshift32
    random_ ^= random_ << 13;
    random_ ^= random_ >> 17;
    random_ ^= random_ << 5;
    return random_;
  }

  const std::unique_ptr<uint32_t[]> entries_ = std::make_unique_for_overwrite<uint32_t[]>(kEntries);
  alignas(64) std::atomic<uint32_t> head_{0};
  // The pusher's, but for the last one.
  uint32_t known_tail_ = 0;
  uint32_t skip_ = 0;
  uint32_t random_ = 0x9e3779b9;
  std::atomic<uint32_t> sampling_{1};  // seldom stored to
  std::atomic<ActivityBell*> bell_{nullptr};
  alignas(64) std::atomic<uint32_t> tail_{0};
};

}  // namespace termfs::tlib::client
