// SPDX-License-Identifier: Apache-2.0
//
// CompletionInlet: where completions come into a completion queue that other threads than its own have to report:
// those of queue pairs over the network, whose packets the RNIC thread takes in.
//
// No lost wake-up: Arm raises the flag, then looks for entries; Put counts its entry, then Wake looks at the flag; all
// four sequentially consistent, so one of them sees the other.
//
// Thread-safety: Put and Wake from any thread; the rest on the completion queue's thread.
// Ownership:     shared by the completion queue and its queue pairs. Once Forget has returned nothing of that queue
// pair
//                is in it; who calls Put sees to it that nothing follows.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "driver/nic.h"

namespace termfs::driver::softnic {

// What a completion queue knows of a queue pair: how much is under way.
class QueuePairCounts {
 public:
  void OnPolled(const WorkCompletion& completion) {
    (completion.opcode == Opcode::kRecv ? receives_in_flight_ : sends_in_flight_)--;
  }

 protected:
  ~QueuePairCounts() = default;
  uint32_t sends_in_flight_ = 0;     // posted, and completion not yet polled
  uint32_t receives_in_flight_ = 0;  // of its own; not asked for where they are shared
};

struct CompletionEntry {
  WorkCompletion completion;
  QueuePairCounts* queue_pair;  // null: it is gone, and the receive was a shared one
};
// Takes the queue pair out of `entry`. False: the entry is not wanted any more.
bool OutlivesQueuePair(CompletionEntry& entry, const QueuePairCounts* queue_pair, bool keeps_receives);

class CompletionInlet {
 public:
  using Entry = CompletionEntry;

  static Result<std::shared_ptr<CompletionInlet>> Create();

  void Put(QueuePairCounts* queue_pair, const WorkCompletion& completion) EXCLUDES(mutex_);
  // After one or more Puts.
  void Wake();

  bool has_entries() const { return count_.load(std::memory_order_acquire) != 0; }
  // Calls `take` with every entry, the oldest first.
  template <typename F>
  void Take(F&& take) EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      entries_.swap(taken_);
      count_.store(0, std::memory_order_relaxed);
    }
    for (const Entry& entry : taken_) {
      take(entry);
    }
    taken_.clear();
  }
  // `keeps_receives`: but for its completions of shared receives, which are of no queue pair then.
  void Forget(const QueuePairCounts* queue_pair, bool keeps_receives) EXCLUDES(mutex_);

  int fd() const { return event_.get(); }
  // False: there are entries.
  bool Arm();
  void Disarm() { armed_.store(false, std::memory_order_relaxed); }
  void ReadEvent();

 private:
  CompletionInlet() = default;

  UniqueFd event_;
  std::atomic<uint32_t> count_{0};
  std::atomic<bool> armed_{false};
  std::vector<Entry> taken_;  // its memory serves again
  Mutex mutex_;
  std::vector<Entry> entries_ GUARDED_BY(mutex_);
};

}  // namespace termfs::driver::softnic
