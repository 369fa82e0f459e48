// SPDX-License-Identifier: Apache-2.0
#include "base/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>

namespace termfs {

Result<std::unique_ptr<EventLoop>> EventLoop::Create() {
  std::unique_ptr<EventLoop> loop(new EventLoop);
  loop->epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!loop->epoll_.valid()) {
    return ErrnoStatus("create an epoll instance");
  }
  loop->wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!loop->wake_.valid()) {
    return ErrnoStatus("create an eventfd");
  }
  const int wake = loop->wake_.get();
  RETURN_IF_ERROR(loop->Add(wake, EPOLLIN, [wake](uint32_t) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(wake, &count, sizeof(count));  // EAGAIN: drained already
  }));
  return loop;
}

EventLoop::~EventLoop() = default;

Status EventLoop::Add(int fd, uint32_t events, Callback callback) {
  const uint32_t id = next_id_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = Tag(fd, id);
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoStatus("watch a descriptor");
  }
  watches_[fd] = {id, std::make_shared<Callback>(std::move(callback))};
  return Status::Ok();
}

Status EventLoop::Modify(int fd, uint32_t events) {
  const auto found = watches_.find(fd);
  if (found == watches_.end()) {
    return Status::Error(ENOENT, "change what is watched of a descriptor");
  }
  epoll_event event{};
  event.events = events;
  event.data.u64 = Tag(fd, found->second.id);
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) {
    return ErrnoStatus("change what is watched of a descriptor");
  }
  return Status::Ok();
}

void EventLoop::Remove(int fd) {
  if (watches_.erase(fd) != 0) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  }
}

void EventLoop::Post(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = write(wake_.get(), &one, sizeof(one));  // full: a wake-up is pending anyway
}

void EventLoop::Every(std::chrono::milliseconds period, std::function<void()> tick) {
  period_ = period;
  tick_ = std::move(tick);
}

void EventLoop::RunTasks() {
  std::vector<std::function<void()>> tasks;
  {
    MutexLock lock(mutex_);
    tasks.swap(tasks_);
  }
  for (auto& task : tasks) {
    task();
  }
}

void EventLoop::Dispatch(uint64_t tag, uint32_t events) {
  const auto found = watches_.find(static_cast<int>(static_cast<uint32_t>(tag)));
  if (found == watches_.end() || found->second.id != static_cast<uint32_t>(tag >> 32)) {
    return;  // removed by a callback before it in this batch
  }
  const std::shared_ptr<Callback> callback = found->second.callback;  // survives its own Remove
  (*callback)(events);
}

void EventLoop::Run() {
  std::array<epoll_event, 64> events{};
  auto next_tick = std::chrono::steady_clock::now() + period_;
  while (!stopping_) {
    int timeout = -1;
    if (tick_) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_tick - std::chrono::steady_clock::now());
      timeout = static_cast<int>(std::max<int64_t>(0, left.count()));
    }
    const int ready = epoll_wait(epoll_.get(), events.data(), events.size(), timeout);
    TERMFS_CHECK(ready >= 0 || errno == EINTR);
    for (int i = 0; i < ready; i++) {
      Dispatch(events[i].data.u64, events[i].events);
    }
    RunTasks();
    if (tick_ && std::chrono::steady_clock::now() >= next_tick) {
      next_tick = std::chrono::steady_clock::now() + period_;
      tick_();
    }
  }
  RunTasks();
}

void EventLoop::Stop() {
  Post([this] { stopping_ = true; });
}

}  // namespace termfs
