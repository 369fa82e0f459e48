// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/aio_context.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/log.h"

namespace termfs::tlib::server {
namespace {

// The start of the completion ring that the kernel maps at the context's address (fs/aio.c, struct aio_ring).
struct AioRing {
  uint32_t id;
  uint32_t entries;
  uint32_t head;
  uint32_t tail;
  uint32_t magic;
};
constexpr uint32_t kRingMagic = 0xa10a10a1;
constexpr size_t kBatch = 64;  // requests per io_submit, events per io_getevents

thread_local AioContext* context_of_thread = nullptr;

}  // namespace

AioContext* AioContext::OfThread() { return context_of_thread; }

Result<std::unique_ptr<AioContext>> AioContext::Create(uint32_t depth) {
  std::unique_ptr<AioContext> context(new AioContext());
  context->event_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!context->event_.valid()) {
    return ErrnoStatus("create an eventfd for asynchronous I/O");
  }
  if (const int error = io_setup(static_cast<int>(depth), &context->context_); error != 0) {
    context->context_ = nullptr;
    return Status::Errno(-error, "set up asynchronous I/O (is /proc/sys/fs/aio-max-nr used up?)");
  }
  context->depth_ = depth;
  context->batch_.reserve(kBatch);
  context->events_.resize(kBatch);
  return context;
}

AioContext::~AioContext() {
  if (context_ == nullptr) {
    return;
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (in_flight_ > 0 && std::chrono::steady_clock::now() < deadline) {
    timespec timeout{.tv_sec = 1, .tv_nsec = 0};
    const int got = io_getevents(context_, 1, static_cast<long>(events_.size()), events_.data(), &timeout);
    if (got < 0 && got != -EINTR) {
      break;
    }
    in_flight_ -= std::min<size_t>(in_flight_, static_cast<size_t>(std::max(got, 0)));
  }
  if (in_flight_ > 0) {
    LOG_ERROR("asynchronous I/O: {} requests did not end", in_flight_);
  }
  if (const int error = io_destroy(context_); error != 0) {
    LOG_ERROR("destroy an asynchronous I/O context: errno {}", -error);
  }
}

bool AioContext::Poll() {
  context_of_thread = this;
  const bool submitted = Submit();
  const bool collected = Collect();
  return submitted || collected;
}

bool AioContext::Arm() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(event_.get(), &count, sizeof(count));  // EAGAIN: nothing had ended
  // The kernel fills the ring first and signals then: what is not in the ring now will signal.
  return !HasCompletions() && (queued_.empty() || in_flight_ > 0);
}

bool AioContext::Submit() {
  bool any = false;
  while (!queued_.empty() && in_flight_ < depth_) {
    batch_.clear();
    const size_t count = std::min({queued_.size(), size_t{depth_} - in_flight_, kBatch});
    for (size_t i = 0; i < count; i++) {
      AioRequest* const request = queued_[i];
      request->control.data = request;
      io_set_eventfd(&request->control, event_.get());
      batch_.push_back(&request->control);
    }
    const int taken = io_submit(context_, static_cast<long>(count), batch_.data());
    if (taken > 0) {
      queued_.erase(queued_.begin(), queued_.begin() + taken);
      in_flight_ += static_cast<size_t>(taken);
      any = true;
      continue;
    }
    if (taken == 0 || taken == -EAGAIN || taken == -EINTR) {
      break;  // the kernel's queue is full: again after the next completions
    }
    AioRequest* const refused = queued_.front();
    queued_.pop_front();
    refused->result = taken;
    refused->done(refused);
    any = true;
  }
  return any;
}

bool AioContext::Collect() {
  bool any = false;
  while (HasCompletions()) {
    timespec no_wait{};
    const int got = io_getevents(context_, 0, static_cast<long>(events_.size()), events_.data(), &no_wait);
    if (got <= 0) {
      break;
    }
    in_flight_ -= static_cast<size_t>(got);
    for (int i = 0; i < got; i++) {
      auto* const request = static_cast<AioRequest*>(events_[i].data);
      request->result = static_cast<int64_t>(events_[i].res);
      request->done(request);
    }
    any = true;
  }
  return any;
}

bool AioContext::HasCompletions() const {
  if (in_flight_ == 0) {
    return false;
  }
  const auto* const ring = reinterpret_cast<const AioRing*>(context_);
  if (ring->magic != kRingMagic) {
    return true;  // not the layout we know: ask the kernel
  }
  // Pairs with the kernel's store of the tail after the event. io_getevents reads the event itself.
  const uint32_t tail = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE);
  return __atomic_load_n(&ring->head, __ATOMIC_RELAXED) != tail;
}

}  // namespace termfs::tlib::server
