// SPDX-License-Identifier: Apache-2.0
//
// What a channel looks at before and after every READ: whether the session is lost, and which magic patterns are in
// use. One word answers both: bit 0 says lost, the bits above count the changes of the patterns.
//
// A pattern changes in two steps: the server tells its clients the new one beside the former, waits for them all, lets
// the RNIC deliver the new one, and then tells them to forget the former. A READ may run across either step, so a
// channel checks what arrived against all patterns it knew before the READ *and* all that are known after it.
//
// Thread-safety: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "driver/nic.h"

namespace termfs::tlib::client {

class Patterns {
 public:
  static constexpr uint64_t kLost = 1;

  // Acquire: pairs with Set and MarkLost.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }
  bool lost() const { return (version() & kLost) != 0; }

  // Those to recognise, and the version that has them.
  std::vector<driver::Pattern> Get(uint64_t* version) const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    *version = version_.load(std::memory_order_relaxed);
    return patterns_;
  }
  void Set(std::vector<driver::Pattern> patterns) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    patterns_ = std::move(patterns);
    version_.fetch_add(2, std::memory_order_release);
  }
  // False: it was lost before.
  bool MarkLost() { return (version_.fetch_or(kLost, std::memory_order_acq_rel) & kLost) == 0; }

 private:
  alignas(64) std::atomic<uint64_t> version_{0};
  alignas(64) mutable Mutex mutex_;
  std::vector<driver::Pattern> patterns_ GUARDED_BY(mutex_);
};

}  // namespace termfs::tlib::client
