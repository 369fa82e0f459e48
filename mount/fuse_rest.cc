// SPDX-License-Identifier: Apache-2.0
//
// Threads of the device that rest. The kernel hands requests to the threads that read the device in turn, so that each
// of them would have been used before long, and have its lane and the memory for that. So only as many read it as have
// been busy at a time lately, and one more; the others rest, and the one that went to rest last is the first to be
// woken, when no thread reads the device any more.
//
// No request is left lying: a thread that goes to rest is counted, then looks whether a thread reads; one that received
// a request is counted, then looks whether one rests. All of that is sequentially consistent, so one of them sees the
// other.
#include <algorithm>

#include "mount/fuse_server.h"

namespace termfs::mount {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kLately{1};
constexpr std::chrono::seconds kTurn{10};  // of a wait in a loop

}  // namespace

// Those that rest have been taken off: how many read the device, or are just about to.
int64_t FuseServer::Receivers() const {
  return static_cast<int64_t>(readers_.load()) - static_cast<int64_t>(busy_.load()) - resting_count_.load();
}

void FuseServer::NoteBusy(steady_clock::time_point now) {
  const auto busy = static_cast<uint32_t>(busy_.load());
  if (now - lately_began_.load(std::memory_order_relaxed) >= kLately) {
    lately_began_.store(now, std::memory_order_relaxed);
    most_busy_before_.store(most_busy_.exchange(busy, std::memory_order_relaxed), std::memory_order_relaxed);
  } else if (busy > most_busy_.load(std::memory_order_relaxed)) {
    most_busy_.store(busy, std::memory_order_relaxed);
  }
  if (resting_count_.load() != 0 && Receivers() <= 0) {
    WakeOneThatRests();
  }
}

void FuseServer::RestIfMany(Worker& worker) {
  const uint32_t most =
      std::max(most_busy_.load(std::memory_order_relaxed), most_busy_before_.load(std::memory_order_relaxed));
  if (Receivers() <= std::max(most, 1U) + 1) {
    return;
  }
  MutexLock lock(rest_mutex_);
  resting_count_.fetch_add(1);
  if (Receivers() < 1) {
    resting_count_.fetch_sub(1);
    return;
  }
  worker.rests = true;
  resting_.push_back(&worker);
  while (worker.rests && !stopping_.load(std::memory_order_relaxed)) {
    worker.rested.WaitFor(rest_mutex_, kTurn);
  }
  if (worker.rests) {
    std::erase(resting_, &worker);
    resting_count_.fetch_sub(1);
    worker.rests = false;
  }
}

void FuseServer::WakeOneThatRests() {
  MutexLock lock(rest_mutex_);
  if (resting_.empty()) {
    return;
  }
  Worker& worker = *resting_.back();
  resting_.pop_back();
  resting_count_.fetch_sub(1);
  worker.rests = false;
  worker.rested.NotifyAll();
}

void FuseServer::WakeAllThatRest() {
  MutexLock lock(rest_mutex_);
  for (Worker* const worker : resting_) {
    worker->rested.NotifyAll();
  }
}

}  // namespace termfs::mount
