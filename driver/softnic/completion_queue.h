// SPDX-License-Identifier: Apache-2.0
//
// SoftCompletionQueue: a ring of completions, and the list of queue pairs whose inboxes are looked at when it is
// polled. Completions of one-sided operations are in the ring by the time PostSend returns. The ring grows with what is
// in it; the capacity is what queue pairs may fill.
//
// Resting. Of many queue pairs most have nothing to say. One that has had nothing for a while rests: its flag stays
// raised, as if the queue slept, and its inbox is not looked at before its peer has woken it. So polling and arming
// cost by the queue pairs in use.
//
// Sleeping. fd() is an epoll instance over the queue pairs' request sockets and a timer. Arm raises a flag that peers
// check after they have put a message into an inbox (queue_pair_messages.cc says why no wake-up is lost); the timer
// covers what has a deadline: a SEND that finds no receive, a request that the peer's RNIC thread does not answer.
// Completions of queue pairs over the network come through the inlet, which has an eventfd of its own.
//
// Thread-safety: one thread, the one of its queue pairs.
// Ownership:     queue pairs detach themselves; they are destroyed before it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/unique_fd.h"
#include "driver/nic.h"
#include "driver/softnic/completion_inlet.h"

namespace termfs::driver::softnic {

class SoftQueuePair;

// What may have completions for a queue once it is polled itself: a port that its thread receives on. Of that thread.
class PolledPort {
 public:
  virtual ~PolledPort() = default;
  virtual void Poll() = 0;
  // From now on who sleeps on fd() is woken by what arrives, and mostly alone.
  virtual void PrepareToSleep() = 0;
  virtual void StayAwake() = 0;
  virtual int fd() const = 0;
};

class SoftCompletionQueue final : public CompletionQueue {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  static Result<std::unique_ptr<CompletionQueue>> Create(uint32_t capacity);
  ~SoftCompletionQueue() override;

  size_t Poll(std::span<WorkCompletion> completions) override;
  bool Arm() override;
  void Disarm() override;
  int fd() const override;  // from Arm to Disarm it may be another one
  Status Resize(uint32_t capacity) override;
  void GatherWakeUps() override { gathers_ = true; }

  // --- For queue pairs.

  // Sets `count` completions aside for the queue pair. ENOMEM: the capacity does not suffice.
  Status Attach(SoftQueuePair* queue_pair, uint32_t count);
  // The same for a queue pair that is not polled: its completions come through the inlet, which is made at need.
  Result<std::shared_ptr<CompletionInlet>> AttachToInlet(uint32_t count);
  // Forgets the queue pair and the completions that it left here, or with `keeps_receives` those that are of no shared
  // receive.
  void Detach(QueuePairCounts* queue_pair, uint32_t count, bool keeps_receives);
  // It has work that no wake-up announces: it is polled again.
  void StopResting(SoftQueuePair* queue_pair);
  // Polled with the queue; its completions come through the inlet.
  Status Add(PolledPort* port);
  void Remove(PolledPort* port);
  Status Watch(SoftQueuePair* queue_pair, int fd);
  void Unwatch(int fd);
  // REQUIRES: within what Attach set aside.
  void Push(QueuePairCounts* queue_pair, const WorkCompletion& completion) {
    if (tail_ - head_ == ring_.size()) [[unlikely]] {
      Grow();
    }
    ring_[tail_++ & (ring_.size() - 1)] = {completion, queue_pair};
  }
  // True: the peer of `queue_pair`, which just got its first message since the last Poll, is woken by the next one.
  bool WakeLater(SoftQueuePair* queue_pair) {
    if (gathers_) {
      to_wake_.push_back(queue_pair);
    }
    return gathers_;
  }

 private:
  using Entry = CompletionEntry;

  explicit SoftCompletionQueue(uint32_t capacity);
  Status Reserve(uint32_t count);
  size_t PopRing(std::span<WorkCompletion> completions);
  void SetTimer(TimePoint deadline);
  void StayAwake();
  void TakeInlet();
  void ReadDescriptors();
  void WakePeers();
  void Grow();
  bool HasMany() const;
  void LetRest();
  void LookAtResting(bool busy);

  uint32_t capacity_;
  std::vector<Entry> ring_;  // a power of two
  uint64_t head_ = 0;
  uint64_t tail_ = 0;
  uint32_t reserved_ = 0;
  std::vector<SoftQueuePair*> queue_pairs_;  // that do not rest
  size_t resting_ = 0;
  uint32_t until_rest_;  // polls, before those that had nothing are let rest
  uint32_t until_look_;  // polls, before the descriptors of those that rest are looked at
  size_t next_ = 0;      // whose turn it is
  bool armed_ = false;
  bool lone_ = false;  // armed for the one queue pair's socket only, or for the inlet only
  bool timer_set_ = false;
  bool gathers_ = false;
  std::vector<SoftQueuePair*> to_wake_;     // whose peers got messages since the last Poll; each once
  std::shared_ptr<CompletionInlet> inlet_;  // null: no queue pair over the network was attached
  std::vector<PolledPort*> ports_;
  UniqueFd epoll_;
  UniqueFd timer_;
};

}  // namespace termfs::driver::softnic
