// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/completion_queue.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "base/log.h"
#include "driver/softnic/queue_pair.h"

namespace termfs::driver::softnic {

namespace {

constexpr uint32_t kMaxCapacity = 1U << 22;
constexpr uint32_t kFirstEntries = 256;
// As many queue pairs are looked at in less time than it takes to find out that one of them has been woken.
constexpr size_t kFew = 8;
// Some milliseconds of a queue that is polled all the time; or so many sleeps.
constexpr uint32_t kPollsToRest = 1U << 16;
constexpr uint32_t kSleepsToRest = 16;
// A look at the descriptors costs as much as some idle polls; a poll that has found something is worth many.
constexpr uint32_t kPollsToLook = 64;
constexpr uint32_t kBusyPollsToLook = 8;

Status CheckCapacity(uint32_t capacity) {
  return capacity != 0 && capacity <= kMaxCapacity
             ? Status::Ok()
             : Status::Error(EINVAL, "a completion queue of " + std::to_string(capacity) + " entries: it has 1 to " +
                                         std::to_string(kMaxCapacity));
}

}  // namespace

SoftCompletionQueue::SoftCompletionQueue(uint32_t capacity)
    : capacity_(capacity),
      ring_(std::bit_ceil(std::min(capacity, kFirstEntries))),
      until_rest_(kPollsToRest),
      until_look_(kPollsToLook) {}

SoftCompletionQueue::~SoftCompletionQueue() { TERMFS_CHECK(queue_pairs_.empty() && resting_ == 0); }

Result<std::unique_ptr<CompletionQueue>> SoftCompletionQueue::Create(uint32_t capacity) {
  RETURN_IF_ERROR(CheckCapacity(capacity));
  std::unique_ptr<SoftCompletionQueue> queue(new SoftCompletionQueue(capacity));
  queue->epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  queue->timer_ = UniqueFd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!queue->epoll_.valid() || !queue->timer_.valid()) {
    return ErrnoStatus("create the descriptors of a completion queue");
  }
  RETURN_IF_ERROR(queue->Watch(nullptr, queue->timer_.get()));
  return std::unique_ptr<CompletionQueue>(std::move(queue));
}

Status SoftCompletionQueue::Resize(uint32_t capacity) {
  RETURN_IF_ERROR(CheckCapacity(capacity));
  if (capacity < std::max<uint64_t>(reserved_, tail_ - head_)) {
    return Status::Error(EINVAL, "a completion queue of " + std::to_string(capacity) +
                                     " entries for queue pairs that may fill " + std::to_string(reserved_));
  }
  capacity_ = capacity;
  return Status::Ok();
}

void SoftCompletionQueue::Grow() {
  std::vector<Entry> larger(ring_.size() * 2);
  for (uint64_t at = head_; at != tail_; at++) {
    larger[at - head_] = ring_[at & (ring_.size() - 1)];
  }
  tail_ -= std::exchange(head_, 0);
  ring_ = std::move(larger);
}

Status SoftCompletionQueue::Reserve(uint32_t count) {
  if (count > capacity_ - reserved_) {
    return Status::Error(ENOMEM, "a completion queue of " + std::to_string(capacity_) +
                                     " entries for queue pairs that may fill " + std::to_string(reserved_ + count));
  }
  reserved_ += count;
  return Status::Ok();
}

Status SoftCompletionQueue::Attach(SoftQueuePair* queue_pair, uint32_t count) {
  RETURN_IF_ERROR(Reserve(count));
  if (std::find(queue_pairs_.begin(), queue_pairs_.end(), queue_pair) == queue_pairs_.end()) {
    queue_pairs_.push_back(queue_pair);
  }
  return Status::Ok();
}

Result<std::shared_ptr<CompletionInlet>> SoftCompletionQueue::AttachToInlet(uint32_t count) {
  if (inlet_ == nullptr) {
    ASSIGN_OR_RETURN(auto inlet, CompletionInlet::Create());
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = inlet.get();
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, inlet->fd(), &event) != 0) {
      return ErrnoStatus("watch a descriptor of a completion queue");
    }
    inlet_ = std::move(inlet);
  }
  RETURN_IF_ERROR(Reserve(count));
  return inlet_;
}

void SoftCompletionQueue::Detach(QueuePairCounts* queue_pair, uint32_t count, bool keeps_receives) {
  reserved_ -= count;
  lone_ = false;
  const auto is_it = [&](const SoftQueuePair* polled) { return polled == queue_pair; };
  if (const auto found = std::find_if(queue_pairs_.begin(), queue_pairs_.end(), is_it); found != queue_pairs_.end()) {
    queue_pairs_.erase(found);
  }
  std::erase_if(to_wake_, is_it);
  if (inlet_ != nullptr) {
    inlet_->Forget(queue_pair, keeps_receives);
  }
  // Squeeze the holes out: the room they take is somebody else's now.
  const uint64_t mask = ring_.size() - 1;
  uint64_t to = head_;
  for (uint64_t at = head_; at != tail_; at++) {
    if (OutlivesQueuePair(ring_[at & mask], queue_pair, keeps_receives)) {
      ring_[to++ & mask] = ring_[at & mask];
    }
  }
  tail_ = to;
}

bool SoftCompletionQueue::HasMany() const { return queue_pairs_.size() > kFew; }

// Those that have had nothing since the last time.
void SoftCompletionQueue::LetRest() {
  until_rest_ = kPollsToRest;
  if (!HasMany()) {
    return;
  }
  std::erase_if(queue_pairs_, [&](SoftQueuePair* queue_pair) {
    const bool rests = queue_pair->Rest(*this);
    resting_ += rests ? 1 : 0;
    return rests;
  });
  next_ = 0;
}

void SoftCompletionQueue::StopResting(SoftQueuePair* queue_pair) {
  if (queue_pair->StopResting(*this)) {
    resting_--;
    queue_pairs_.push_back(queue_pair);
  }
}

void SoftCompletionQueue::LookAtResting(bool busy) {
  const uint32_t step = busy ? kPollsToLook / kBusyPollsToLook : 1;
  until_look_ -= std::min(until_look_, step);
  if (until_look_ == 0) {
    until_look_ = kPollsToLook;
    ReadDescriptors();
  }
}

Status SoftCompletionQueue::Watch(SoftQueuePair* queue_pair, int fd) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.ptr = queue_pair;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoStatus("watch a descriptor of a completion queue");
  }
  return Status::Ok();
}

// Nothing is to be read of it but what Poll reads: the events that say so are of no queue pair.
Status SoftCompletionQueue::Add(PolledPort* port) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = this;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, port->fd(), &event) != 0) {
    return ErrnoStatus("watch a descriptor of a completion queue");
  }
  ports_.push_back(port);
  return Status::Ok();
}

void SoftCompletionQueue::Remove(PolledPort* port) {
  if (std::erase(ports_, port) != 0) {
    Unwatch(port->fd());
  }
}

void SoftCompletionQueue::Unwatch(int fd) { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

size_t SoftCompletionQueue::PopRing(std::span<WorkCompletion> completions) {
  const size_t count = std::min<uint64_t>(completions.size(), tail_ - head_);
  for (size_t i = 0; i < count; i++) {
    const Entry& entry = ring_[head_++ & (ring_.size() - 1)];
    completions[i] = entry.completion;
    if (entry.queue_pair != nullptr) [[likely]] {
      entry.queue_pair->OnPolled(entry.completion);
    }
  }
  return count;
}

void SoftCompletionQueue::TakeInlet() {
  if (inlet_ != nullptr && inlet_->has_entries()) {
    inlet_->Take([&](const Entry& entry) { Push(entry.queue_pair, entry.completion); });
  }
}

void SoftCompletionQueue::WakePeers() {
  for (SoftQueuePair* queue_pair : to_wake_) {
    queue_pair->WakePeer();
  }
  to_wake_.clear();
}

size_t SoftCompletionQueue::Poll(std::span<WorkCompletion> completions) {
  WakePeers();
  if (inlet_ != nullptr && !inlet_->has_entries() && head_ == tail_) {
    for (PolledPort* port : ports_) {
      port->Poll();
    }
  }
  TakeInlet();
  size_t count = PopRing(completions);
  const size_t queue_pairs = queue_pairs_.size();
  for (size_t i = 0; i < queue_pairs && count < completions.size(); i++) {
    next_ = next_ + 1 < queue_pairs ? next_ + 1 : 0;
    queue_pairs_[next_]->Progress(*this, completions.size() - count);
    if (head_ != tail_) {
      count += PopRing(completions.subspan(count));
    }
  }
  if (--until_rest_ == 0) [[unlikely]] {
    LetRest();
  }
  if (resting_ != 0) {
    LookAtResting(/*busy=*/count != 0);
  }
  return count;
}

// Where there is but one socket to wait for, a sleeper waits for that itself: through epoll both falling asleep and
// being woken cost more, and so does finding out what for.
int SoftCompletionQueue::fd() const {
  if (!lone_) {
    return epoll_.get();
  }
  if (inlet_ == nullptr) {
    return queue_pairs_.front()->socket();
  }
  return inlet_->fd();
}

bool SoftCompletionQueue::Arm() {
  WakePeers();
  if (head_ != tail_) {
    return false;
  }
  constexpr uint32_t kPollsOfSleep = kPollsToRest / kSleepsToRest;
  if (until_rest_ > kPollsOfSleep) {
    until_rest_ -= kPollsOfSleep;
  } else {
    LetRest();
  }
  armed_ = true;
  lone_ = false;
  TimePoint deadline = TimePoint::max();
  for (SoftQueuePair* queue_pair : queue_pairs_) {
    if (!queue_pair->PrepareToSleep(*this, &deadline)) {
      return false;
    }
  }
  SetTimer(deadline);
  if (inlet_ != nullptr) {
    lone_ = !timer_set_ && queue_pairs_.empty() && resting_ == 0 && ports_.empty();
    for (PolledPort* port : ports_) {
      port->PrepareToSleep();
    }
    if (!inlet_->Arm()) {
      StayAwake();
      return false;
    }
    return true;
  }
  lone_ = !timer_set_ && queue_pairs_.size() == 1 && resting_ == 0 && queue_pairs_.front()->SleepsForMessages(*this);
  return true;
}

void SoftCompletionQueue::SetTimer(TimePoint deadline) {
  if (deadline == TimePoint::max() && !timer_set_) {
    return;
  }
  itimerspec setting{};  // all zero: off
  timer_set_ = deadline != TimePoint::max();
  if (timer_set_) {
    const auto since_boot =
        std::max<int64_t>(1, std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch()).count());
    setting.it_value.tv_sec = since_boot / 1'000'000'000;
    setting.it_value.tv_nsec = since_boot % 1'000'000'000;
  }
  // steady_clock is CLOCK_MONOTONIC here.
  TERMFS_CHECK(timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &setting, nullptr) == 0);
}

void SoftCompletionQueue::Disarm() {
  if (inlet_ != nullptr && queue_pairs_.empty() && resting_ == 0 &&
      !timer_set_) {  // else it is to be found out what it was
    lone_ = false;
    inlet_->ReadEvent();  // whatever it was: an event that stays would end each sleep at once
  } else if (lone_) {
    lone_ = false;
    queue_pairs_.front()->ReadSocket(1);  // there was one wake-up; should there be more, the next sleep is a short one
  } else {
    ReadDescriptors();
  }
  StayAwake();
}

void SoftCompletionQueue::StayAwake() {
  if (!std::exchange(armed_, false)) {
    return;
  }
  if (inlet_ != nullptr) {
    inlet_->Disarm();
  }
  for (PolledPort* port : ports_) {
    port->StayAwake();
  }
  for (SoftQueuePair* queue_pair : queue_pairs_) {
    queue_pair->StayAwake(*this);
  }
}

void SoftCompletionQueue::ReadDescriptors() {
  std::array<epoll_event, 64> events{};
  const int ready = epoll_wait(epoll_.get(), events.data(), events.size(), 0);
  for (int i = 0; i < ready; i++) {
    if (events[i].data.ptr == nullptr) {
      uint64_t expirations = 0;
      [[maybe_unused]] const ssize_t got = read(timer_.get(), &expirations, sizeof(expirations));  // EAGAIN: read
      timer_set_ = false;
    } else if (events[i].data.ptr == this) {
      continue;
    } else if (events[i].data.ptr == inlet_.get()) {
      inlet_->ReadEvent();
    } else {
      auto* const queue_pair = static_cast<SoftQueuePair*>(events[i].data.ptr);
      queue_pair->ReadSocket();
      StopResting(queue_pair);
    }
  }
}

}  // namespace termfs::driver::softnic
