// SPDX-License-Identifier: Apache-2.0
//
// Ending: while it lives a mount is ending, which may need the server (pages of mappings to write, requests to answer).
// When nothing moves for a while it gives up on the server, so that everything that waits for it returns, and the
// mount's process ends promptly also when the server is stopped. Where there is no thread for it, nobody gives up.
//
// Thread-safety: none. Ownership: owns a thread; refers to what it is given.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

#include "base/mutex.h"

namespace termfs::mount {

class Ending {
 public:
  // `progress`: a number that changes when something moves. `give_up` is called once, if at all. Both on its thread.
  Ending(std::chrono::milliseconds patience, std::function<uint64_t()> progress, std::function<void()> give_up);
  ~Ending();
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;

 private:
  void Run() EXCLUDES(mutex_);

  const std::chrono::milliseconds patience_;
  const std::function<uint64_t()> progress_;
  const std::function<void()> give_up_;
  Mutex mutex_;
  CondVar changed_;
  bool over_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace termfs::mount
