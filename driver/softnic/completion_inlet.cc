// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/completion_inlet.h"

#include <sys/eventfd.h>
#include <unistd.h>

namespace termfs::driver::softnic {

bool OutlivesQueuePair(CompletionEntry& entry, const QueuePairCounts* queue_pair, bool keeps_receives) {
  if (entry.queue_pair != queue_pair || queue_pair == nullptr) {
    return true;
  }
  entry.queue_pair = nullptr;
  return keeps_receives && entry.completion.opcode == Opcode::kRecv && entry.completion.id != kNoReceive;
}

Result<std::shared_ptr<CompletionInlet>> CompletionInlet::Create() {
  std::shared_ptr<CompletionInlet> inlet(new CompletionInlet);
  inlet->event_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!inlet->event_.valid()) {
    return ErrnoStatus("create an eventfd");
  }
  return inlet;
}

void CompletionInlet::Put(QueuePairCounts* queue_pair, const WorkCompletion& completion) {
  MutexLock lock(mutex_);
  entries_.push_back({completion, queue_pair});
  count_.store(static_cast<uint32_t>(entries_.size()), std::memory_order_seq_cst);
}

void CompletionInlet::Wake() {
  if (armed_.load(std::memory_order_seq_cst) && armed_.exchange(false)) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t put = write(event_.get(), &one, sizeof(one));  // full: it is readable
  }
}

void CompletionInlet::Forget(const QueuePairCounts* queue_pair, bool keeps_receives) {
  MutexLock lock(mutex_);
  std::erase_if(entries_, [&](Entry& entry) { return !OutlivesQueuePair(entry, queue_pair, keeps_receives); });
  count_.store(static_cast<uint32_t>(entries_.size()), std::memory_order_relaxed);
}

bool CompletionInlet::Arm() {
  armed_.store(true, std::memory_order_seq_cst);
  return count_.load(std::memory_order_seq_cst) == 0;
}

void CompletionInlet::ReadEvent() {
  uint64_t wakes = 0;
  [[maybe_unused]] const ssize_t got = read(event_.get(), &wakes, sizeof(wakes));  // EAGAIN: there was none
}

}  // namespace termfs::driver::softnic
