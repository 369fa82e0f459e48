// SPDX-License-Identifier: Apache-2.0
#ifndef TERMFS_TESTS_UNIT_EVENTUALLY_H_
#define TERMFS_TESTS_UNIT_EVENTUALLY_H_

#include <chrono>
#include <functional>
#include <thread>

namespace termfs {

// Waits, with a bound, for something that another thread or process brings about.
inline bool Eventually(const std::function<bool()>& condition,
                       std::chrono::milliseconds bound = std::chrono::seconds(60)) {
  const auto deadline = std::chrono::steady_clock::now() + bound;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

}  // namespace termfs

#endif  // TERMFS_TESTS_UNIT_EVENTUALLY_H_
