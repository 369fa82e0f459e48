// SPDX-License-Identifier: Apache-2.0
//
// A completion queue of libibverbs with its channel, and the queue pairs bound to it, which turn its completions into
// the seam's.
//
// Thread-safety: one thread, as the seam has it.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>

#include "driver/nic.h"
#include "driver/verbs/device.h"

namespace termfs::driver::verbs {

class VerbsQueuePair;

class VerbsCompletionQueue final : public CompletionQueue {
 public:
  static Result<std::unique_ptr<CompletionQueue>> Create(std::shared_ptr<Device> device, uint32_t capacity);
  ~VerbsCompletionQueue() override;

  size_t Poll(std::span<WorkCompletion> completions) override;
  bool Arm() override;
  void Disarm() override;
  Status Resize(uint32_t capacity) override;
  int fd() const override { return channel_->fd; }

  // --- For queue pairs.

  ibv_cq* get() const { return queue_.get(); }
  // Room for `completions` more. ENOMEM: there is none.
  Status Reserve(uint32_t completions);
  void GiveBack(uint32_t completions) { reserved_ -= completions; }
  void Add(uint32_t number, VerbsQueuePair& pair) { pairs_.emplace(number, &pair); }
  // Its completions go with it, but for those of shared receives.
  void Remove(uint32_t number, bool shares_receives);
  // Takes from the device what is there, so that finished sends make room.
  void Collect();
  // A completion that the device knows nothing of.
  void Put(const WorkCompletion& completion) { arrived_.push_back(completion); }

 private:
  VerbsCompletionQueue(std::shared_ptr<Device> device, uint32_t capacity)
      : device_(std::move(device)), capacity_(capacity) {}

  const std::shared_ptr<Device> device_;
  uint32_t capacity_;
  ChannelPtr channel_;
  QueuePtr queue_;
  uint32_t reserved_ = 0;
  bool broken_ = false;  // and it was said
  std::unordered_map<uint32_t, VerbsQueuePair*> pairs_;
  std::deque<WorkCompletion> arrived_;
};

}  // namespace termfs::driver::verbs
