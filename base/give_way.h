// SPDX-License-Identifier: Apache-2.0
//
// GiveWay: the scheduler runs whoever is woken at once. So a thread that is woken by the first of several things would
// find that one alone: before it looks, it lets those run who share its CPU and are making the others. Where a program
// that computes takes the CPU instead, for as long as the scheduler lets it, that is noticed, and tried again ever more
// seldom.
//
// Thread-safety: its thread.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace termfs {

class GiveWay {
 public:
  // After a wake-up.
  void operator()() {
    if (!Due()) {
      return;
    }
    const auto begin = std::chrono::steady_clock::now();
    sched_yield();
    Gave(std::chrono::steady_clock::now() - begin);
  }

  // Whether to, at this wake-up; and how long the CPU was others'.
  bool Due() {
    if (left_out_ == 0) {
      return true;
    }
    left_out_--;
    return false;
  }
  void Gave(std::chrono::nanoseconds taken) {
    const bool long_gone = taken > kLong;
    pause_ = long_gone ? std::min(2 * pause_ + 1, kLongestPause) : pause_ / 2;
    left_out_ = long_gone ? pause_ : 0;
  }

 private:
  static constexpr std::chrono::microseconds kLong{500};  // for what we wait for
  static constexpr uint32_t kLongestPause = 4095;         // wake-ups
  uint32_t left_out_ = 0;
  uint32_t pause_ = 0;
};

}  // namespace termfs
