// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/network/stream_loop.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/check.h"
#include "driver/softnic/network/stream_end.h"

namespace termfs::driver::softnic {
namespace {

Result<UniqueFd> NewEpoll() {
  UniqueFd made(epoll_create1(EPOLL_CLOEXEC));
  if (!made.valid()) {
    return ErrnoStatus("create an epoll instance");
  }
  return made;
}

}  // namespace

Result<std::unique_ptr<StreamLoop>> StreamLoop::Create(std::shared_ptr<RnicThread> thread,
                                                       std::function<void()> keep_time) {
  std::unique_ptr<StreamLoop> loop(new StreamLoop(std::move(thread), std::move(keep_time)));
  RETURN_IF_ERROR(loop->Start());
  return loop;
}

Status StreamLoop::Start() {
  ASSIGN_OR_RETURN(UniqueFd input, NewEpoll());
  ASSIGN_OR_RETURN(UniqueFd room, NewEpoll());
  silent_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!silent_.valid()) {
    return ErrnoStatus("create an eventfd");
  }
  input_ = std::move(input);
  room_ = std::move(room);
  thread_->Watch(input_.get(), [this] { OnInput(); });
  thread_->Watch(room_.get(), [this] { OnRoom(); });
  return Status::Ok();
}

StreamLoop::~StreamLoop() {
  if (room_.valid()) {
    thread_->Unwatch(input_.get());
    thread_->Unwatch(room_.get());
    thread_->Barrier();
  }
}

void StreamLoop::Add(const std::shared_ptr<StreamEnd>& end) {
  MutexLock lock(mutex_);
  ends_[end->number()] = end;
  size_.store(ends_.size(), std::memory_order_relaxed);
}

std::shared_ptr<StreamEnd> StreamLoop::Remove(uint32_t number) {
  MutexLock lock(mutex_);
  const auto found = ends_.find(number);
  if (found == ends_.end()) {
    return nullptr;
  }
  std::shared_ptr<StreamEnd> end = std::move(found->second);
  ends_.erase(found);
  size_.store(ends_.size(), std::memory_order_relaxed);
  if (end->started()) {
    Unwatch(*end);
  }
  return end;
}

std::shared_ptr<StreamEnd> StreamLoop::Find(uint32_t number) {
  MutexLock lock(mutex_);
  const auto found = ends_.find(number);
  return found == ends_.end() ? nullptr : found->second;
}

// ---------------------------------------------------------------------------------------------------------------
// Bytes.

void StreamLoop::WatchInput(const StreamEnd& end) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = end.number();
  TERMFS_CHECK(epoll_ctl(input_.get(), EPOLL_CTL_ADD, end.fd(), &event) == 0 || errno == EEXIST);
}

void StreamLoop::IgnoreInput(const StreamEnd& end) { epoll_ctl(input_.get(), EPOLL_CTL_DEL, end.fd(), nullptr); }

void StreamLoop::WatchRoom(const StreamEnd& end) {
  epoll_event event{};
  event.events = EPOLLOUT | EPOLLONESHOT;
  event.data.u32 = end.number();
  if (epoll_ctl(room_.get(), EPOLL_CTL_MOD, end.fd(), &event) != 0) {
    TERMFS_CHECK(epoll_ctl(room_.get(), EPOLL_CTL_ADD, end.fd(), &event) == 0);
  }
}

void StreamLoop::Unwatch(const StreamEnd& end) {
  epoll_ctl(input_.get(), EPOLL_CTL_DEL, end.fd(), nullptr);
  epoll_ctl(room_.get(), EPOLL_CTL_DEL, end.fd(), nullptr);
}

void StreamLoop::Bury(int socket) { TERMFS_CHECK(dup3(silent_.get(), socket, O_CLOEXEC) == socket); }

// Sequentially consistent: a thread that posts a receive after the task has begun to look finds the flag lowered.
void StreamLoop::RetryWaiting() {
  if (!retries_.exchange(true)) {
    thread_->Post([this] { OnRetry(); });
  }
}

void StreamLoop::OnRetry() {
  retries_.store(false);
  std::vector<std::shared_ptr<StreamEnd>> waiting;
  {
    MutexLock lock(mutex_);
    for (const auto& [number, end] : ends_) {
      if (end->waits_for_receive()) {
        waiting.push_back(end);
      }
    }
  }
  for (const auto& end : waiting) {
    end->Retry();
  }
}

void StreamLoop::OnInput() {
  std::array<epoll_event, 64> events{};
  const int ready = epoll_wait(input_.get(), events.data(), events.size(), 0);
  for (int i = 0; i < ready; i++) {
    if (const auto end = Find(events[static_cast<size_t>(i)].data.u32)) {
      end->Receive();
    }
  }
}

void StreamLoop::OnRoom() {
  std::array<epoll_event, 64> events{};
  const int ready = epoll_wait(room_.get(), events.data(), events.size(), 0);
  for (int i = 0; i < ready; i++) {
    if (const auto end = Find(events[static_cast<size_t>(i)].data.u32)) {
      end->OnRoom();
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Time.

bool StreamLoop::OnTick(std::chrono::steady_clock::time_point now) {
  std::vector<std::shared_ptr<StreamEnd>> due;
  bool waiting = false;
  {
    MutexLock lock(mutex_);
    for (const auto& [number, end] : ends_) {
      const auto deadline = end->deadline();
      waiting = waiting || deadline != StreamEnd::TimePoint::max();
      if (deadline <= now) {
        due.push_back(end);
      }
    }
  }
  if (!due.empty()) {
    thread_->Run([due = std::move(due), now] {
      for (const auto& end : due) {
        end->OnTimer(now);
      }
    });
  }
  return waiting;
}

bool StreamLoop::needs_ticks() {
  MutexLock lock(mutex_);
  return std::any_of(ends_.begin(), ends_.end(),
                     [](const auto& one) { return one.second->deadline() != StreamEnd::TimePoint::max(); });
}

}  // namespace termfs::driver::softnic
