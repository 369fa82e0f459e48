// SPDX-License-Identifier: Apache-2.0
//
// SteppingNic: another NIC, whose queue pairs carry READs that are posted together out one after another, in an order
// that RNICs are allowed to, with a look in between. READs may be carried out in any order but for fences: here it is
// the one in which they were posted, or the reverse between fences.
//
// Thread-safety, errors: the other NIC's; what Steps tells is changed while nothing is posted.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "driver/nic.h"

namespace termfs::driver {

struct Steps {
  bool reversed = false;
  // Called before the first READ of a post of two and more, with 0, and after each, with how many have been carried
  // out. Empty: posts are left alone.
  std::function<void(size_t done)> look;
};

class SteppingQueue final : public CompletionQueue {
 public:
  explicit SteppingQueue(std::unique_ptr<CompletionQueue> queue) : queue_(std::move(queue)) {}
  size_t Poll(std::span<WorkCompletion> completions) override {
    size_t count = 0;
    for (; count < completions.size() && !kept_.empty(); count++) {
      completions[count] = kept_.front();
      kept_.pop_front();
    }
    return count + queue_->Poll(completions.subspan(count));
  }
  bool Arm() override { return kept_.empty() && queue_->Arm(); }
  void Disarm() override { queue_->Disarm(); }
  int fd() const override { return queue_->fd(); }
  Status Resize(uint32_t capacity) override { return queue_->Resize(capacity); }

  CompletionQueue* inner() { return queue_.get(); }
  void Keep(const WorkCompletion& completion) { kept_.push_back(completion); }
  // The next completion with this id; others are kept.
  WorkCompletion Await(uint64_t id) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < deadline) {
      WorkCompletion completion;
      if (queue_->Poll({&completion, 1}) == 0) {
        continue;
      }
      if (completion.id == id) {
        return completion;
      }
      Keep(completion);
    }
    ADD_FAILURE() << "a READ did not complete";
    return {.status = WcStatus::kFatalErr};
  }

 private:
  const std::unique_ptr<CompletionQueue> queue_;
  std::deque<WorkCompletion> kept_;
};

class SteppingPair final : public QueuePair {
 public:
  SteppingPair(std::unique_ptr<QueuePair> pair, SteppingQueue& queue, const Steps& steps)
      : pair_(std::move(pair)), queue_(queue), steps_(steps) {}
  uint32_t number() const override { return pair_->number(); }
  Result<Endpoint> LocalEndpoint() override { return pair_->LocalEndpoint(); }
  Status Connect(Endpoint remote) override { return pair_->Connect(std::move(remote)); }
  Status PostSend(std::span<const SendWorkRequest> requests) override {
    const bool reads = std::all_of(requests.begin(), requests.end(),
                                   [](const SendWorkRequest& request) { return request.opcode == Opcode::kRdmaRead; });
    return reads && requests.size() > 1 && steps_.look ? Step(requests) : pair_->PostSend(requests);
  }
  Status PostRecv(std::span<const RecvWorkRequest> requests) override { return pair_->PostRecv(requests); }
  Result<std::span<const std::byte>> SharedView(RKey rkey) override { return pair_->SharedView(rkey); }
  void Close() override { pair_->Close(); }
  bool connected() const override { return pair_->connected(); }

 private:
  static constexpr uint64_t kStep = 0x57e9'57e9'57e9'57e9;

  Status Step(std::span<const SendWorkRequest> requests) {
    size_t done = 0;
    steps_.look(done);
    for (const SendWorkRequest& request : InOrder(requests)) {
      SendWorkRequest one = request;
      one.id = kStep;
      one.signaled = true;
      RETURN_IF_ERROR(pair_->PostSend({&one, 1}));
      WorkCompletion completion = queue_.Await(kStep);
      completion.id = request.id;
      if (request.signaled || completion.status != WcStatus::kSuccess) {
        queue_.Keep(completion);
      }
      steps_.look(++done);
    }
    return Status::Ok();
  }
  std::vector<SendWorkRequest> InOrder(std::span<const SendWorkRequest> requests) const {
    std::vector<SendWorkRequest> order(requests.begin(), requests.end());
    if (steps_.reversed) {
      for (auto begin = order.begin(); begin != order.end();) {
        const auto end = std::find_if(begin + 1, order.end(), [](const auto& request) { return request.send_fence; });
        std::reverse(begin, end);
        begin = end;
      }
    }
    return order;
  }

  const std::unique_ptr<QueuePair> pair_;
  SteppingQueue& queue_;
  const Steps& steps_;
};

class SteppingDomain final : public ProtectionDomain {
 public:
  SteppingDomain(std::unique_ptr<ProtectionDomain> domain, const Steps& steps)
      : domain_(std::move(domain)), steps_(steps) {}
  Result<std::unique_ptr<MemoryRegion>> RegisterMemory(std::byte* data, size_t size, Access access) override {
    return domain_->RegisterMemory(data, size, access);
  }
  Result<std::unique_ptr<TermRegion>> RegisterTermRegion(const TermRegionOptions& options) override {
    return domain_->RegisterTermRegion(options);
  }
  Result<std::unique_ptr<QueuePair>> CreateQueuePair(const QueuePairOptions& options) override {
    auto& send = static_cast<SteppingQueue&>(*options.send_cq);
    QueuePairOptions own = options;
    own.send_cq = send.inner();
    own.recv_cq = static_cast<SteppingQueue&>(*options.recv_cq).inner();
    ASSIGN_OR_RETURN(std::unique_ptr<QueuePair> pair, domain_->CreateQueuePair(own));
    return std::unique_ptr<QueuePair>(std::make_unique<SteppingPair>(std::move(pair), send, steps_));
  }
  Result<std::unique_ptr<SharedReceiveQueue>> CreateSharedReceiveQueue(
      const SharedReceiveQueueOptions& options) override {
    return domain_->CreateSharedReceiveQueue(options);
  }

 private:
  const std::unique_ptr<ProtectionDomain> domain_;
  const Steps& steps_;
};

class SteppingNic final : public Nic {
 public:
  // `steps` outlives it.
  SteppingNic(std::unique_ptr<Nic> nic, const Steps& steps) : nic_(std::move(nic)), steps_(steps) {}
  std::string transport(bool network) const override { return nic_->transport(network); }
  Result<std::unique_ptr<Memory>> AllocateMemory(const MemoryOptions& options) override {
    return nic_->AllocateMemory(options);
  }
  Result<std::unique_ptr<ProtectionDomain>> CreateProtectionDomain() override {
    ASSIGN_OR_RETURN(std::unique_ptr<ProtectionDomain> domain, nic_->CreateProtectionDomain());
    return std::unique_ptr<ProtectionDomain>(std::make_unique<SteppingDomain>(std::move(domain), steps_));
  }
  Result<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t capacity) override {
    ASSIGN_OR_RETURN(std::unique_ptr<CompletionQueue> queue, nic_->CreateCompletionQueue(capacity));
    return std::unique_ptr<CompletionQueue>(std::make_unique<SteppingQueue>(std::move(queue)));
  }

 private:
  const std::unique_ptr<Nic> nic_;
  const Steps& steps_;
};

}  // namespace termfs::driver
