// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/background_task.h"

#include "base/check.h"

namespace termfs::tlib::server {

BackgroundTask::~BackgroundTask() {
  MutexLock lock(mutex_);
  TERMFS_CHECK(!running_);
}

void BackgroundTask::Start(const Spawner& spawn) {
  {
    MutexLock lock(mutex_);
    TERMFS_CHECK(!running_);
    running_ = true;
  }
  spawn([this] { Loop(); });
}

void BackgroundTask::Loop() {
  {
    MutexLock lock(mutex_);
    task_ = &Task::Current();
  }
  while (!stopping()) {
    kicked_.store(false);
    const auto deadline = round_() + std::chrono::steady_clock::now();
    while (!stopping() && !kicked_.load() && std::chrono::steady_clock::now() < deadline) {
      Task::ParkUntil(deadline);
    }
  }
  MutexLock lock(mutex_);
  task_ = nullptr;
  running_ = false;
  if (stopper_ != nullptr) {
    stopper_->Unpark();
  }
}

void BackgroundTask::Kick() {
  if (kicked_.exchange(true)) {
    return;  // on its way
  }
  MutexLock lock(mutex_);
  if (task_ != nullptr) {
    task_->Unpark();
  }
}

void BackgroundTask::Stop() {
  stopping_.store(true);
  mutex_.Lock();
  if (task_ != nullptr) {
    task_->Unpark();
  }
  stopper_ = &Task::Current();
  while (running_) {
    mutex_.Unlock();
    Task::Park();  // bounded by a round
    mutex_.Lock();
  }
  stopper_ = nullptr;
  mutex_.Unlock();
}

}  // namespace termfs::tlib::server
