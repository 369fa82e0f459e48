// SPDX-License-Identifier: Apache-2.0
//
// ForgingNic: another NIC, at which messages arrive and leave as a test wants them: a function may change the
// completion of a receive, and the bytes that it was received into; another one the bytes of what is posted.
//
// Thread-safety, errors: the other NIC's. The functions are called by the thread that polls or posts.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "driver/nic.h"

namespace termfs::driver {

// Of the receive that has completed: `bytes` is all of its buffer.
using Forgery = std::function<void(WorkCompletion& completion, std::span<std::byte> bytes)>;
using ForgeryOfPosted = std::function<void(std::span<const SendWorkRequest> requests)>;

class ForgingQueue final : public CompletionQueue {
 public:
  ForgingQueue(std::unique_ptr<CompletionQueue> queue, const Forgery& forgery)
      : queue_(std::move(queue)), forgery_(forgery) {}
  size_t Poll(std::span<WorkCompletion> completions) override {
    const size_t count = queue_->Poll(completions);
    for (WorkCompletion& completion : completions.first(count)) {
      const auto found = receives_.find(completion.id);
      if (completion.status == WcStatus::kSuccess && completion.opcode == Opcode::kRecv && found != receives_.end()) {
        forgery_(completion, found->second);
      }
    }
    return count;
  }
  bool Arm() override { return queue_->Arm(); }
  void Disarm() override { queue_->Disarm(); }
  int fd() const override { return queue_->fd(); }
  Status Resize(uint32_t capacity) override { return queue_->Resize(capacity); }

  CompletionQueue* inner() { return queue_.get(); }
  void Note(const RecvWorkRequest& request) {
    receives_[request.id] = {static_cast<std::byte*>(request.local.addr), request.local.length};
  }

 private:
  const std::unique_ptr<CompletionQueue> queue_;
  const Forgery& forgery_;
  std::map<uint64_t, std::span<std::byte>> receives_;
};

class ForgingPair final : public QueuePair {
 public:
  ForgingPair(std::unique_ptr<QueuePair> pair, ForgingQueue& queue, const ForgeryOfPosted& posted)
      : pair_(std::move(pair)), queue_(queue), posted_(posted) {}
  uint32_t number() const override { return pair_->number(); }
  Result<Endpoint> LocalEndpoint() override { return pair_->LocalEndpoint(); }
  Status Connect(Endpoint remote) override { return pair_->Connect(std::move(remote)); }
  Status PostSend(std::span<const SendWorkRequest> requests) override {
    if (posted_) {
      posted_(requests);
    }
    return pair_->PostSend(requests);
  }
  Status PostRecv(std::span<const RecvWorkRequest> requests) override {
    for (const RecvWorkRequest& request : requests) {
      queue_.Note(request);
    }
    return pair_->PostRecv(requests);
  }
  Result<std::span<const std::byte>> SharedView(RKey rkey) override { return pair_->SharedView(rkey); }
  void Close() override { pair_->Close(); }
  bool connected() const override { return pair_->connected(); }

 private:
  const std::unique_ptr<QueuePair> pair_;
  ForgingQueue& queue_;
  const ForgeryOfPosted& posted_;
};

class ForgingDomain final : public ProtectionDomain {
 public:
  ForgingDomain(std::unique_ptr<ProtectionDomain> domain, const ForgeryOfPosted& posted)
      : domain_(std::move(domain)), posted_(posted) {}
  Result<std::unique_ptr<MemoryRegion>> RegisterMemory(std::byte* data, size_t size, Access access) override {
    return domain_->RegisterMemory(data, size, access);
  }
  Result<std::unique_ptr<TermRegion>> RegisterTermRegion(const TermRegionOptions& options) override {
    return domain_->RegisterTermRegion(options);
  }
  Result<std::unique_ptr<QueuePair>> CreateQueuePair(const QueuePairOptions& options) override {
    auto& receives = static_cast<ForgingQueue&>(*options.recv_cq);
    QueuePairOptions own = options;
    own.send_cq = static_cast<ForgingQueue&>(*options.send_cq).inner();
    own.recv_cq = receives.inner();
    ASSIGN_OR_RETURN(std::unique_ptr<QueuePair> pair, domain_->CreateQueuePair(own));
    return std::unique_ptr<QueuePair>(std::make_unique<ForgingPair>(std::move(pair), receives, posted_));
  }

 private:
  const std::unique_ptr<ProtectionDomain> domain_;
  const ForgeryOfPosted& posted_;
};

class ForgingNic final : public Nic {
 public:
  // The functions outlive it.
  explicit ForgingNic(std::unique_ptr<Nic> nic, const Forgery& forgery, const ForgeryOfPosted& posted = kNone)
      : nic_(std::move(nic)), forgery_(forgery), posted_(posted) {}
  std::string transport(bool network) const override { return nic_->transport(network); }
  bool Speaks(Wire wire) const override { return nic_->Speaks(wire); }
  Result<std::unique_ptr<Memory>> AllocateMemory(const MemoryOptions& options) override {
    ASSIGN_OR_RETURN(auto memory, nic_->AllocateMemory(options));
    memories_.emplace_back(memory->data(), memory->size());
    return memory;
  }
  // In the order in which they were allocated.
  const std::vector<std::span<std::byte>>& memories() const { return memories_; }
  Result<std::unique_ptr<ProtectionDomain>> CreateProtectionDomain() override {
    ASSIGN_OR_RETURN(std::unique_ptr<ProtectionDomain> domain, nic_->CreateProtectionDomain());
    return std::unique_ptr<ProtectionDomain>(std::make_unique<ForgingDomain>(std::move(domain), posted_));
  }
  Result<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t capacity) override {
    ASSIGN_OR_RETURN(std::unique_ptr<CompletionQueue> queue, nic_->CreateCompletionQueue(capacity));
    return std::unique_ptr<CompletionQueue>(std::make_unique<ForgingQueue>(std::move(queue), forgery_));
  }

 private:
  static inline const ForgeryOfPosted kNone;
  const std::unique_ptr<Nic> nic_;
  const Forgery& forgery_;
  const ForgeryOfPosted& posted_;
  std::vector<std::span<std::byte>> memories_;
};

}  // namespace termfs::driver
