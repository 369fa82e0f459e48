// SPDX-License-Identifier: Apache-2.0
//
// EventLoop: epoll with callbacks, for the threads that wait on file descriptors (the software RNIC's thread, the
// control channel's). Workers have a loop of their own, tlib/server/worker.h.
//
// Thread-safety: Post and Stop from any thread; everything else from the thread that runs the loop, or before Run.
// Ownership:     the loop does not own the descriptors it watches; Remove one before closing it.
// Errors:        a callback gets the epoll event bits, EPOLLERR and EPOLLHUP included.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace termfs {

class EventLoop {
 public:
  using Callback = std::function<void(uint32_t events)>;

  static Result<std::unique_ptr<EventLoop>> Create();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Calls `callback` on the loop's thread whenever `events` (EPOLLIN, ...) are pending on `fd`.
  // A callback may Add and Remove descriptors, its own included.
  Status Add(int fd, uint32_t events, Callback callback);
  Status Modify(int fd, uint32_t events);
  void Remove(int fd);

  // Runs `task` on the loop's thread, in the order of the calls. Tasks posted before the loop ends are run.
  void Post(std::function<void()> task) EXCLUDES(mutex_);
  // Calls `tick` on the loop's thread about every `period`. REQUIRES: called at most once, before Run.
  void Every(std::chrono::milliseconds period, std::function<void()> tick);

  // Runs until Stop.
  void Run();
  void Stop();

 private:
  // A descriptor's number may be closed and given out again while an event of the old one is pending; the id, which
  // travels with the event, tells them apart.
  struct Watch {
    uint32_t id;
    std::shared_ptr<Callback> callback;
  };

  EventLoop() = default;
  static uint64_t Tag(int fd, uint32_t id) { return uint64_t{id} << 32 | static_cast<uint32_t>(fd); }
  void Dispatch(uint64_t tag, uint32_t events);
  void RunTasks() EXCLUDES(mutex_);

  UniqueFd epoll_;
  UniqueFd wake_;
  std::unordered_map<int, Watch> watches_;  // by descriptor
  uint32_t next_id_ = 0;
  std::chrono::milliseconds period_{0};
  std::function<void()> tick_;
  bool stopping_ = false;  // only on the loop's thread
  Mutex mutex_;
  std::vector<std::function<void()>> tasks_ GUARDED_BY(mutex_);
};

}  // namespace termfs
