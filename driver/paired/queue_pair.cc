// SPDX-License-Identifier: Apache-2.0
#include "driver/paired/queue_pair.h"

#include <sys/epoll.h>

#include <cerrno>

#include "base/log.h"
#include "driver/paired/paired.h"

namespace termfs::driver::paired {

Result<std::unique_ptr<CompletionQueue>> PairedCompletionQueue::Create(Nic& local, Nic& device, uint32_t capacity) {
  std::unique_ptr<PairedCompletionQueue> queue(new PairedCompletionQueue);
  ASSIGN_OR_RETURN(queue->local_, local.CreateCompletionQueue(capacity));
  ASSIGN_OR_RETURN(queue->device_, device.CreateCompletionQueue(capacity));
  queue->both_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!queue->both_.valid()) {
    return ErrnoStatus("create an epoll instance of a completion queue");
  }
  // While a queue is armed it may have another descriptor that fewer wake; the one that it has now serves always.
  for (CompletionQueue* const one : {queue->local(), queue->device()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ctl(queue->both_.get(), EPOLL_CTL_ADD, one->fd(), &event) != 0) {
      return ErrnoStatus("watch a completion queue");
    }
  }
  return std::unique_ptr<CompletionQueue>(std::move(queue));
}

// Where the device has no queue so large, its own queue pairs are refused, and no others.
Status PairedCompletionQueue::Resize(uint32_t capacity) {
  if (const Status resized = device_->Resize(capacity); !resized.ok()) {
    LOG_DEBUG("{}", resized.ToString());
  }
  return local_->Resize(capacity);
}

size_t PairedCompletionQueue::PollDevice(std::span<WorkCompletion> completions) {
  const size_t count = device_->Poll(completions);
  for (WorkCompletion& completion : completions.first(count)) {
    completion.qp_num |= kDeviceMark;
  }
  return count;
}

size_t PairedCompletionQueue::Poll(std::span<WorkCompletion> completions) {
  if (device_pairs_ == 0) {
    return local_->Poll(completions);
  }
  device_first_ = !device_first_;
  size_t count = device_first_ ? PollDevice(completions) : local_->Poll(completions);
  const auto rest = completions.subspan(count);
  count += device_first_ ? local_->Poll(rest) : PollDevice(rest);  // also without room: it wakes whom it is to wake
  return count;
}

bool PairedCompletionQueue::Arm() {
  device_armed_ = device_pairs_ != 0;
  const bool local = local_->Arm();  // both: Disarm follows for both
  return (!device_armed_ || device_->Arm()) && local;
}

void PairedCompletionQueue::Disarm() {
  local_->Disarm();
  if (device_armed_) {
    device_->Disarm();
    device_armed_ = false;
  }
}

void PairedCompletionQueue::OnDevicePairDestroyed() {
  if (--device_pairs_ == 0) {
    device_->Disarm();  // nobody will, and what has woken must not wake for ever
    device_armed_ = false;
  }
}

PairedQueuePair::PairedQueuePair(std::unique_ptr<QueuePair> pair, PairedCompletionQueue& send,
                                 PairedCompletionQueue& receive)
    : pair_(std::move(pair)), send_(send), receive_(receive) {
  send_.OnDevicePairCreated();
  receive_.OnDevicePairCreated();
}

PairedQueuePair::~PairedQueuePair() {
  pair_.reset();
  send_.OnDevicePairDestroyed();
  receive_.OnDevicePairDestroyed();
}

uint32_t PairedQueuePair::number() const { return pair_->number() | kDeviceMark; }

}  // namespace termfs::driver::paired
