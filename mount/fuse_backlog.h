// SPDX-License-Identifier: Apache-2.0
//
// FuseBacklog: requests that were received while every thread waited for the server, in the order of their arrival. It
// exists so that the interrupts behind them in the kernel's queue can be received; see FuseServer::Watch.
//
// Thread-safety: any thread.
// Ownership:     owns the bytes of the requests.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "base/mutex.h"

namespace termfs::mount {

class FuseBacklog {
 public:
  static constexpr size_t kMaxBytes = 64U << 20;

  struct Item {
    uint64_t unique = 0;
    uint32_t caller = 0;  // thread that waits for the answer; 0: none that we can name
    int fd = -1;          // where it was received, and is to be answered
    std::unique_ptr<std::byte[]> bytes;
    size_t size = 0;
    std::chrono::steady_clock::time_point received;
  };

  bool empty() const { return count_.load(std::memory_order_acquire) == 0; }
  // Whether a further request, as long as they come, would be taken.
  bool HasRoom(size_t bytes) EXCLUDES(mutex_);
  void Push(Item item) EXCLUDES(mutex_);
  // The oldest.
  std::optional<Item> Pop() EXCLUDES(mutex_);
  // The oldest of which `is_it` is true.
  std::optional<Item> Take(const std::function<bool(const Item&)>& is_it) EXCLUDES(mutex_);

 private:
  Item Remove(const std::deque<Item>::iterator& which) REQUIRES(mutex_);

  std::atomic<size_t> count_{0};
  Mutex mutex_;
  std::deque<Item> items_ GUARDED_BY(mutex_);
  size_t bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace termfs::mount
