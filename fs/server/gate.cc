// SPDX-License-Identifier: Apache-2.0
#include "fs/server/gate.h"

#include <algorithm>

namespace termfs::fs::server {

using tlib::server::Task;

namespace {
constexpr std::chrono::milliseconds kLookAtCancelled{20};
}

void Gate::Take(GateMode mode) {
  if (mode == GateMode::kShared) {
    ++shared_;
  } else {
    exclusive_ = true;
  }
}

void Gate::Admit() {
  while (!queue_.empty() && Free(queue_.front()->mode)) {
    Waiter* waiter = queue_.front();
    queue_.pop_front();
    Take(waiter->mode);
    waiter->admitted = true;
    waiter->task->Unpark();
  }
}

bool Gate::TryEnter(GateMode mode) {
  MutexLock lock(mutex_);
  if (!queue_.empty() || !Free(mode)) {
    return false;
  }
  Take(mode);
  return true;
}

Status Gate::Enter(GateMode mode, Deadline deadline, const std::atomic<bool>* cancelled) {
  if (TryEnter(mode)) {
    return Status::Ok();
  }
  Waiter waiter{mode, &Task::Current()};
  MutexLock lock(mutex_);
  queue_.push_back(&waiter);
  Admit();
  while (!waiter.admitted) {
    const bool is_cancelled = cancelled != nullptr && cancelled->load(std::memory_order_relaxed);
    const auto now = std::chrono::steady_clock::now();
    if (is_cancelled || now >= deadline) {
      std::erase(queue_, &waiter);
      Admit();  // what it blocked
      return is_cancelled ? Status::Error(ECANCELED, "the session is gone")
                          : Status::Error(ETIMEDOUT, "waiting for other operations on the inode");
    }
    mutex_.Unlock();
    Task::ParkUntil(std::min(deadline, now + kLookAtCancelled));
    mutex_.Lock();
  }
  return Status::Ok();
}

void Gate::Leave(GateMode mode) {
  MutexLock lock(mutex_);
  if (mode == GateMode::kShared) {
    --shared_;
  } else {
    exclusive_ = false;
  }
  Admit();
}

}  // namespace termfs::fs::server
