// SPDX-License-Identifier: Apache-2.0
//
// AioContext: one worker's libaio context, an event source of its loop. Tasks of the worker queue requests; Poll hands
// them to the kernel together, once per turn, and collects what has ended.
//
//   ASSIGN_OR_RETURN(auto aio, AioContext::Create(256));   // one per worker, before Worker::Start
//   RETURN_IF_ERROR(worker->AddSource(*aio));              // destroy it after Worker::Stop
//
// Poll without anything queued or completed costs two loads of memory that the kernel shares, no system call.
//
// Thread-safety: the thread of the worker that polls it. Requests are queued by tasks that run there.
// Ownership:     a request is its task's, and stays queued or in flight until its `done` was called.
// Errors:        io_submit's EAGAIN keeps requests queued until others have ended; any other refusal ends the request
//                with that errno.
#pragma once

#include <libaio.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "tlib/server/worker.h"

namespace termfs::tlib::server {

// A request; `control` is filled by the caller with an io_prep_* function.
struct AioRequest {
  iocb control{};
  int64_t result = 0;                           // bytes, or a negative errno; valid once `done` is called
  void (*done)(AioRequest* request) = nullptr;  // on the worker's thread, outside of any task
  void* owner = nullptr;                        // for `done`
};

class AioContext final : public EventSource {
 public:
  // `depth`: requests in flight in the kernel; more are queued here. EAGAIN: /proc/sys/fs/aio-max-nr is used up.
  static Result<std::unique_ptr<AioContext>> Create(uint32_t depth);
  // Waits (up to ten seconds) for what is in flight: the kernel may still write to the buffers.
  ~AioContext() override;
  AioContext(const AioContext&) = delete;
  AioContext& operator=(const AioContext&) = delete;

  // The context that this thread polls, for the tasks that run on it; null when there is none.
  static AioContext* OfThread();

  void Queue(AioRequest* request) { queued_.push_back(request); }

  bool Poll() override;
  bool Arm() override;
  void Disarm() override {}  // Arm drains the eventfd
  int fd() const override { return event_.get(); }

 private:
  AioContext() = default;
  bool Submit();
  bool Collect();
  bool HasCompletions() const;

  io_context_t context_ = nullptr;
  UniqueFd event_;
  uint32_t depth_ = 0;
  size_t in_flight_ = 0;
  std::deque<AioRequest*> queued_;
  std::vector<iocb*> batch_;
  std::vector<io_event> events_;
};

}  // namespace termfs::tlib::server
