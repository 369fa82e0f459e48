// SPDX-License-Identifier: Apache-2.0
//
// A queue pair of the device under its marked number, and the completion queue of both RNICs.
//
// Thread-safety: one thread, as the seam has it.
#pragma once

#include <memory>
#include <utility>

#include "base/unique_fd.h"
#include "driver/nic.h"

namespace termfs::driver::paired {

// Polls and wakes for both. The device is looked at only while it has queue pairs here.
class PairedCompletionQueue final : public CompletionQueue {
 public:
  static Result<std::unique_ptr<CompletionQueue>> Create(Nic& local, Nic& device, uint32_t capacity);

  size_t Poll(std::span<WorkCompletion> completions) override;
  bool Arm() override;
  void Disarm() override;
  int fd() const override { return both_.get(); }
  Status Resize(uint32_t capacity) override;
  void GatherWakeUps() override { local_->GatherWakeUps(); }

  // --- For the domain and its queue pairs.

  CompletionQueue* local() { return local_.get(); }
  CompletionQueue* device() { return device_.get(); }
  void OnDevicePairCreated() { device_pairs_++; }
  void OnDevicePairDestroyed();

 private:
  PairedCompletionQueue() = default;
  size_t PollDevice(std::span<WorkCompletion> completions);

  std::unique_ptr<CompletionQueue> local_;
  std::unique_ptr<CompletionQueue> device_;
  UniqueFd both_;  // an epoll instance over the descriptors of the two
  uint32_t device_pairs_ = 0;
  bool device_armed_ = false;
  bool device_first_ = false;  // turns about, so that neither has to wait for the other's end
};

class PairedQueuePair final : public QueuePair {
 public:
  PairedQueuePair(std::unique_ptr<QueuePair> pair, PairedCompletionQueue& send, PairedCompletionQueue& receive);
  ~PairedQueuePair() override;
  PairedQueuePair(const PairedQueuePair&) = delete;
  PairedQueuePair& operator=(const PairedQueuePair&) = delete;

  uint32_t number() const override;
  Result<Endpoint> LocalEndpoint() override { return pair_->LocalEndpoint(); }
  Status Connect(Endpoint remote) override { return pair_->Connect(std::move(remote)); }
  Status PostSend(std::span<const SendWorkRequest> requests) override { return pair_->PostSend(requests); }
  Status PostRecv(std::span<const RecvWorkRequest> requests) override { return pair_->PostRecv(requests); }
  Result<std::span<const std::byte>> SharedView(RKey rkey) override { return pair_->SharedView(rkey); }
  void Close() override { pair_->Close(); }
  bool connected() const override { return pair_->connected(); }

 private:
  std::unique_ptr<QueuePair> pair_;
  PairedCompletionQueue& send_;
  PairedCompletionQueue& receive_;
};

}  // namespace termfs::driver::paired
