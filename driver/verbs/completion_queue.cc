// SPDX-License-Identifier: Apache-2.0
#include "driver/verbs/completion_queue.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "driver/verbs/queue_pair.h"
#include "driver/verbs/shared_receives.h"

namespace termfs::driver::verbs {
namespace {

constexpr size_t kAtOnce = 32;

}  // namespace

Result<std::unique_ptr<CompletionQueue>> VerbsCompletionQueue::Create(std::shared_ptr<Device> device,
                                                                      uint32_t capacity) {
  capacity = std::min(capacity, device->max_completions());  // fewer queue pairs then: Reserve
  std::unique_ptr<VerbsCompletionQueue> queue(new VerbsCompletionQueue(std::move(device), capacity));
  ibv_context* const context = queue->device_->context();
  queue->channel_.reset(ibv_create_comp_channel(context));
  if (queue->channel_ == nullptr || fcntl(queue->channel_->fd, F_SETFL, O_NONBLOCK) != 0) {
    return ErrnoStatus("create a completion channel");
  }
  queue->queue_.reset(ibv_create_cq(context, static_cast<int>(capacity), nullptr, queue->channel_.get(), 0));
  if (queue->queue_ == nullptr) {
    return ErrnoStatus("create a completion queue for " + std::to_string(capacity));
  }
  return std::unique_ptr<CompletionQueue>(std::move(queue));
}

VerbsCompletionQueue::~VerbsCompletionQueue() { Disarm(); }

Status VerbsCompletionQueue::Resize(uint32_t capacity) {
  if (capacity < reserved_ || capacity > device_->max_completions()) {
    return Status::Error(EINVAL, "a completion queue of " + std::to_string(capacity) + " entries: " + device_->name() +
                                     " has them with up to " + std::to_string(device_->max_completions()) +
                                     ", and the queue pairs may fill " + std::to_string(reserved_));
  }
  if (const int error = ibv_resize_cq(queue_.get(), static_cast<int>(capacity)); error != 0) {
    return Status::Errno(error, "make a completion queue one of " + std::to_string(capacity) + " entries");
  }
  capacity_ = capacity;
  return Status::Ok();
}

Status VerbsCompletionQueue::Reserve(uint32_t completions) {
  if (completions > capacity_ - reserved_) {
    return Status::Error(ENOMEM, "create a queue pair: its completions do not fit into the completion queue of " +
                                     std::to_string(capacity_) + " entries; " + device_->name() +
                                     " has them with up to " + std::to_string(device_->max_completions()));
  }
  reserved_ += completions;
  return Status::Ok();
}

void VerbsCompletionQueue::Remove(uint32_t number, bool shares_receives) {
  pairs_.erase(number);
  std::erase_if(arrived_, [&](const WorkCompletion& one) {
    return one.qp_num == number && !(shares_receives && one.opcode == Opcode::kRecv);
  });
}

void VerbsCompletionQueue::Collect() {
  std::array<ibv_wc, kAtOnce> got;
  int count = 0;
  while ((count = ibv_poll_cq(queue_.get(), got.size(), got.data())) > 0) {
    for (const ibv_wc& one : std::span(got).first(static_cast<size_t>(count))) {
      if (const auto pair = pairs_.find(one.qp_num); pair != pairs_.end()) {  // else it is destroyed
        pair->second->OnCompletion(one);
      } else if (VerbsSharedReceives::Has(one.wr_id)) {
        Put({.id = VerbsSharedReceives::Finish(one.wr_id),
             .status = WcStatus::kWrFlushErr,
             .opcode = Opcode::kRecv,
             .qp_num = one.qp_num});
      }
    }
  }
  if (count < 0 && !std::exchange(broken_, true)) {
    LOG_ERROR("{}: the completion queue cannot be polled", device_->name());
  }
}

size_t VerbsCompletionQueue::Poll(std::span<WorkCompletion> completions) {
  if (arrived_.size() < completions.size()) {
    Collect();
  }
  const size_t count = std::min(completions.size(), arrived_.size());
  for (WorkCompletion& completion : completions.first(count)) {
    completion = arrived_.front();
    arrived_.pop_front();
    if (const auto pair = pairs_.find(completion.qp_num); pair != pairs_.end()) {
      pair->second->OnTaken(completion);
    }
  }
  return count;
}

bool VerbsCompletionQueue::Arm() {
  Disarm();
  if (!arrived_.empty() || ibv_req_notify_cq(queue_.get(), 0) != 0) {
    return false;
  }
  Collect();
  return arrived_.empty();
}

void VerbsCompletionQueue::Disarm() {
  ibv_cq* queue = nullptr;
  void* ignored = nullptr;
  while (ibv_get_cq_event(channel_.get(), &queue, &ignored) == 0) {
    ibv_ack_cq_events(queue, 1);
  }
}

}  // namespace termfs::driver::verbs
