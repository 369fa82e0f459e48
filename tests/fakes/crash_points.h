// SPDX-License-Identifier: Apache-2.0
//
// CrashPoints: the process dies (SIGKILL, nothing is cleaned up) when it passes a named point for the n-th time. The
// decorators in crash_nic.h, crash_block_device.h and crash_store.h pass points before and after each step that leaves
// a trace outside of the process, so that a death falls between any two of them.
//
// Thread-safety: any thread.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <string_view>

namespace termfs {

class CrashPoints {
 public:
  // Dies at the `count`-th (from 1) passing of `name`. An empty name: never.
  CrashPoints(std::string name, uint64_t count) : name_(std::move(name)), left_(static_cast<int64_t>(count)) {}
  CrashPoints(const CrashPoints&) = delete;
  CrashPoints& operator=(const CrashPoints&) = delete;

  void Pass(std::string_view name) {
    if (name == name_ && left_.fetch_sub(1, std::memory_order_relaxed) == 1) {
      kill(getpid(), SIGKILL);
      while (true) {
        pause();  // the signal is on its way to this thread, too
      }
    }
  }

 private:
  const std::string name_;
  std::atomic<int64_t> left_;
};

}  // namespace termfs
