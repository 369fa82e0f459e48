// SPDX-License-Identifier: Apache-2.0
//
// StreamLoop: the iWARP streams of one RNIC thread: takes in what arrives for those that no other thread receives for,
// and goes on sending where a socket was full. Loops share nothing on the path of a READ.
//
// Thread-safety: any thread.
// Ownership:     of Streams; owns its epoll instances, and with others its thread; keeps the streams that it was given.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <unordered_map>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "driver/softnic/rnic_thread.h"

namespace termfs::driver::softnic {

class StreamEnd;

class StreamLoop {
 public:
  // `keep_time`: has OnTick called soon. Any thread.
  static Result<std::unique_ptr<StreamLoop>> Create(std::shared_ptr<RnicThread> thread,
                                                    std::function<void()> keep_time);
  ~StreamLoop();
  StreamLoop(const StreamLoop&) = delete;
  StreamLoop& operator=(const StreamLoop&) = delete;

  void Add(const std::shared_ptr<StreamEnd>& end) EXCLUDES(mutex_);
  // Its sockets are watched no more. Null: it is not of this loop.
  std::shared_ptr<StreamEnd> Remove(uint32_t number) EXCLUDES(mutex_);
  size_t size() const { return size_.load(std::memory_order_relaxed); }

  // --- For the streams.
  void KeepTime() { keep_time_(); }
  void WatchInput(const StreamEnd& end);
  void IgnoreInput(const StreamEnd& end);
  void WatchRoom(const StreamEnd& end);
  void Unwatch(const StreamEnd& end);
  // Receives were posted: the streams that wait for one, and are received by this loop's thread, look again.
  void RetryWaiting();
  // The socket ends; its descriptor stays, and is never readable again: threads may still sleep on it.
  void Bury(int socket);

  // Has the loop's thread call the streams whose time has come. Whether any waits for a later tick.
  bool OnTick(std::chrono::steady_clock::time_point now) EXCLUDES(mutex_);
  bool needs_ticks() EXCLUDES(mutex_);

 private:
  StreamLoop(std::shared_ptr<RnicThread> thread, std::function<void()> keep_time)
      : thread_(std::move(thread)), keep_time_(std::move(keep_time)) {}
  Status Start();
  std::shared_ptr<StreamEnd> Find(uint32_t number) EXCLUDES(mutex_);
  void OnInput();
  void OnRoom();
  void OnRetry();

  const std::shared_ptr<RnicThread> thread_;
  const std::function<void()> keep_time_;
  UniqueFd input_;  // epoll instances, nested into the thread's
  UniqueFd room_;
  UniqueFd silent_;                   // an eventfd that is never signalled
  std::atomic<bool> retries_{false};  // RetryWaiting has a task posted
  std::atomic<size_t> size_{0};

  Mutex mutex_;
  std::unordered_map<uint32_t, std::shared_ptr<StreamEnd>> ends_ GUARDED_BY(mutex_);  // by number
};

}  // namespace termfs::driver::softnic
