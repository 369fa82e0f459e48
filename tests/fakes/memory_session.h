// SPDX-License-Identifier: Apache-2.0
//
// What a MemoryServer has of each client: the session, whose thread answers callbacks, and the requests that it
// carries.
//
// Thread-safety: MemorySession any thread; a call or a post that of who makes it and of the task that carries it out.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "tlib/client/session.h"
#include "tlib/server/server.h"
#include "tlib/server/worker.h"

namespace termfs {

// One callback under way: made by a task, answered by the session's callback thread.
struct MemoryCallback {
  uint16_t opcode;
  std::vector<std::byte> body;
  Mutex mutex;
  std::optional<Result<std::vector<std::byte>>> answer GUARDED_BY(mutex);
  tlib::server::Task* waiter GUARDED_BY(mutex) = nullptr;
};

class MemorySession {
 public:
  MemorySession(uint64_t number, tlib::client::CallbackHandler* handler) : id(number), handler_(handler) {
    thread_ = std::thread([this] { Run(); });
  }
  ~MemorySession() { StopCallbacks(); }

  void StopCallbacks() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    MutexLock lock(join_mutex_);  // a session that is abandoned may be closed at the same time
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  void Push(std::shared_ptr<MemoryCallback> callback) {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(callback));
    changed_.NotifyAll();
  }
  void BeginRequest() {
    MutexLock lock(mutex_);
    ++running_;
  }
  void EndRequest() {
    MutexLock lock(mutex_);
    --running_;
    changed_.NotifyAll();
  }
  void WaitUntilQuiet() {
    MutexLock lock(mutex_);
    while (running_ > 0) {
      changed_.WaitFor(mutex_, std::chrono::seconds(1));
    }
  }

  const uint64_t id;
  std::atomic<bool> lost{false};
  std::atomic<bool> mute{false};
  std::atomic<bool> broken{false};  // callbacks do not get to it
  std::atomic<bool> closing{false};
  std::atomic<bool> goodbye{false};

 private:
  void Run() {
    while (true) {
      std::shared_ptr<MemoryCallback> next;
      {
        MutexLock lock(mutex_);
        while (queue_.empty() && !stopping_) {
          changed_.WaitFor(mutex_, std::chrono::seconds(1));
        }
        if (stopping_) {
          return;
        }
        next = std::move(queue_.front());
        queue_.pop_front();
      }
      auto answer = handler_->HandleCallback(next->opcode, next->body);
      MutexLock lock(next->mutex);
      next->answer = std::move(answer);
      if (next->waiter != nullptr) {
        next->waiter->Unpark();
      }
    }
  }

  tlib::client::CallbackHandler* const handler_;
  Mutex join_mutex_;  // StopCallbacks only
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  int running_ GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<MemoryCallback>> queue_ GUARDED_BY(mutex_);
  std::thread thread_;
};

class MemoryCall final : public tlib::server::Call {
 public:
  MemoryCall(MemorySession& session, const tlib::client::CallRequest& request)
      : session_(session), request_(request), body_(request.body.begin(), request.body.end()) {
    in_.length = static_cast<uint32_t>(request.in.size());
    out_.length = static_cast<uint32_t>(request.out.size());
  }
  tlib::server::SessionId session() const override { return {session_.id}; }
  uint16_t opcode() const override { return request_.opcode; }
  std::span<const std::byte> body() const override { return body_; }
  const tlib::RemoteBuffer& in() const override { return in_; }
  const tlib::RemoteBuffer& out() const override { return out_; }
  tlib::RequestMark mark() const override { return request_.mark; }
  Status PullBulk(std::span<std::byte> into) override {
    TERMFS_CHECK(into.size() == in_.length);
    std::memcpy(into.data(), request_.in.data(), into.size());
    return Status::Ok();
  }
  Status PushBulk(std::span<const std::byte> from) override {
    if (from.size() > out_.length) {
      return Status::Error(ERANGE, "bulk does not fit");
    }
    std::copy(from.begin(), from.end(), request_.out.begin());
    std::fill(request_.out.begin() + static_cast<ptrdiff_t>(from.size()), request_.out.end(), std::byte{0xee});
    out_bytes = static_cast<uint32_t>(from.size());
    return Status::Ok();
  }
  void RunBlocking(std::function<void()> task) override {
    tlib::server::Task& waiter = tlib::server::Task::Current();
    std::atomic<bool> done{false};
    std::thread thread([&] {
      task();
      done.store(true);
      waiter.Unpark();
    });
    while (!done.load()) {
      tlib::server::Task::Park();
    }
    thread.join();
  }

  uint32_t out_bytes = 0;

 private:
  friend class MemoryServer;
  MemorySession& session_;
  const tlib::client::CallRequest& request_;
  const std::vector<std::byte> body_;
  tlib::RemoteBuffer in_;
  tlib::RemoteBuffer out_;
};

struct MemoryPost {
  std::shared_ptr<MemorySession> session;
  tlib::client::CallRequest request;
  std::vector<std::byte> body;
  std::vector<std::byte> in;
  tlib::client::LateReply late;
  std::optional<Result<std::vector<std::byte>>> reply;  // set before `answered`
  std::atomic<bool> answered{false};

  void Tell() {
    if (const auto told = std::exchange(late, nullptr)) {
      told(!reply.has_value() ? Result<std::span<const std::byte>>(Status::Error(ENOTCONN, "no reply will come"))
           : reply->ok()      ? Result<std::span<const std::byte>>(**reply)
                              : reply->status());
    }
  }
};

}  // namespace termfs
