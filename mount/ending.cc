// SPDX-License-Identifier: Apache-2.0
#include "mount/ending.h"

#include <utility>

#include "base/log.h"
#include "base/start_thread.h"

namespace termfs::mount {

using std::chrono::steady_clock;

Ending::Ending(std::chrono::milliseconds patience, std::function<uint64_t()> progress, std::function<void()> give_up)
    : patience_(patience), progress_(std::move(progress)), give_up_(std::move(give_up)) {
  Result<std::thread> started = StartThread([this] { Run(); });
  if (started.ok()) {
    thread_ = std::move(started).value();
  } else {
    LOG_WARNING("the mount's end waits for the server as long as that takes: {}", started.status().ToString());
  }
}

Ending::~Ending() {
  {
    MutexLock lock(mutex_);
    over_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Ending::Run() {
  constexpr int kLooks = 10;  // per patience
  uint64_t seen = progress_();
  auto since = steady_clock::now();
  while (true) {
    {
      MutexLock lock(mutex_);
      if (!over_) {
        changed_.WaitFor(mutex_, patience_ / kLooks);
      }
      if (over_) {
        return;
      }
    }
    if (const uint64_t now = progress_(); now != seen) {
      seen = now;
      since = steady_clock::now();
    } else if (steady_clock::now() - since >= patience_) {
      give_up_();
      return;
    }
  }
}

}  // namespace termfs::mount
