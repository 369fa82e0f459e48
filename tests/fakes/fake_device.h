// SPDX-License-Identifier: Apache-2.0
//
// FakeDevice: a software RNIC that does as an RDMA device does, so that it can be paired with another one. Its queue
// pairs take the other's local keys. What it is told of a TeRM memory region can be looked at; nobody reaches that.
//
// Thread-safety, ownership: as the seam's; the answers of the checks are set before it is paired.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "driver/device.h"
#include "driver/softnic/softnic.h"
#include "tests/fakes/fake_nic.h"

namespace termfs::driver {

class FakeDeviceTermRegion final : public DeviceTermRegion {
 public:
  explicit FakeDeviceTermRegion(const TermMappings& of) : mappings(of), shown_(of.pages / 64 + 1) {
    pattern_.line.fill(std::byte{0x5a});
  }
  RKey rkey() const override { return {77}; }
  const Pattern& pattern() const override { return pattern_; }
  uint64_t pages() const override { return mappings.pages; }
  LKey lkey() const override { return {78}; }
  Status Show(PageIndex first, uint32_t count) override {
    for (uint64_t page = first.value; page < first.value + count; page++) {
      shown_[page / 64].fetch_or(uint64_t{1} << (page % 64));
    }
    shows += count;
    return Status::Ok();
  }
  void Hide(PageIndex page) override {
    Take(page);
    hides++;
  }
  uint64_t ShownOf64(uint64_t word) const override { return shown_[word]; }
  uint64_t magic_reads() const override { return 12; }

  bool Shown(uint64_t page) const { return (shown_[page / 64] >> (page % 64) & 1) != 0; }
  // As the kernel does by itself. Any thread.
  void Take(PageIndex page) { shown_[page.value / 64].fetch_and(~(uint64_t{1} << (page.value % 64))); }

  const TermMappings mappings;
  std::atomic<uint32_t> shows{0};
  std::atomic<uint32_t> hides{0};

 private:
  Pattern pattern_;
  std::vector<std::atomic<uint64_t>> shown_;
};

inline ScatterGather Translated(const ScatterGather& local, const LocalKeyMap& keys) {
  ScatterGather part;
  return keys.Translate(local, {&part, 1}) == 1 ? part : ScatterGather{local.addr, local.length, {}};
}

inline std::vector<RecvWorkRequest> Translated(std::span<const RecvWorkRequest> requests, const LocalKeyMap& keys) {
  std::vector<RecvWorkRequest> own(requests.begin(), requests.end());
  for (RecvWorkRequest& request : own) {
    request.local = Translated(request.local, keys);
  }
  return own;
}

// A shared receive queue and the queue pairs that take from it, which take the other RNIC's local keys.
class TranslatingSharedReceives final : public SharedReceiveQueue {
 public:
  TranslatingSharedReceives(std::unique_ptr<SharedReceiveQueue> queue, std::shared_ptr<const LocalKeyMap> keys)
      : queue_(std::move(queue)), keys_(std::move(keys)) {}
  Status PostRecv(std::span<const RecvWorkRequest> requests) override {
    return queue_->PostRecv(Translated(requests, *keys_));
  }
  SharedReceiveQueue* inner() { return queue_.get(); }

 private:
  const std::unique_ptr<SharedReceiveQueue> queue_;
  const std::shared_ptr<const LocalKeyMap> keys_;
};

class TranslatingQueuePair final : public QueuePair {
 public:
  TranslatingQueuePair(std::unique_ptr<QueuePair> pair, std::shared_ptr<const LocalKeyMap> keys)
      : pair_(std::move(pair)), keys_(std::move(keys)) {}
  uint32_t number() const override { return pair_->number(); }
  Result<Endpoint> LocalEndpoint() override { return pair_->LocalEndpoint(); }
  Status Connect(Endpoint remote) override { return pair_->Connect(std::move(remote)); }
  Status PostSend(std::span<const SendWorkRequest> requests) override {
    std::vector<SendWorkRequest> own(requests.begin(), requests.end());
    for (SendWorkRequest& request : own) {
      request.local = Translated(request.local, *keys_);
    }
    return pair_->PostSend(own);
  }
  Status PostRecv(std::span<const RecvWorkRequest> requests) override {
    return pair_->PostRecv(Translated(requests, *keys_));
  }
  Result<std::span<const std::byte>> SharedView(RKey rkey) override { return pair_->SharedView(rkey); }
  void Close() override { pair_->Close(); }
  bool connected() const override { return pair_->connected(); }

 private:
  const std::unique_ptr<QueuePair> pair_;
  const std::shared_ptr<const LocalKeyMap> keys_;
};

class FakeDevice final : public RdmaDevice {
 public:
  FakeDevice() : nic_(CreateSoftNic().value()) {}

  std::string name() const override { return "fake0"; }
  std::string transport(bool) const override { return "verbs fake0"; }
  Status CheckTermRegions() override { return term_regions; }
  Status CheckPorts() override { return ports; }
  Result<std::unique_ptr<Memory>> AllocateMemory(const MemoryOptions& options) override {
    return nic_->AllocateMemory(options);
  }
  Result<std::unique_ptr<ProtectionDomain>> CreateProtectionDomain() override { return nic_->CreateProtectionDomain(); }
  Result<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t capacity) override {
    return nic_->CreateCompletionQueue(capacity);
  }
  Result<std::unique_ptr<DeviceDomain>> CreateDeviceDomain(std::shared_ptr<const LocalKeyMap> keys) override {
    return std::unique_ptr<DeviceDomain>(
        std::make_unique<Domain>(nic_->CreateProtectionDomain().value(), std::move(keys), *this));
  }

  Status term_regions = Status::Error(EOPNOTSUPP, "the driver of fake0 has no TeRM memory regions");
  Status ports;
  int registered = 0;                // memory regions that are, of foreign memory
  int registrations_left = 1 << 30;  // then ENOMEM
  // Of those, what peers may READ, by keys.
  std::map<uint32_t, std::span<std::byte>> readable;
  FakeDeviceTermRegion* term_region = nullptr;  // the last

 private:
  class Registered final : public MemoryRegion {
   public:
    Registered(std::unique_ptr<MemoryRegion> region, bool readable, FakeDevice& device)
        : region_(std::move(region)), device_(device) {
      device_.registered++;
      if (readable) {
        rkey_ = {device_.next_rkey_++};
        device_.readable[rkey_.value] = {region_->data(), region_->size()};
      }
    }
    ~Registered() override {
      device_.registered--;
      device_.readable.erase(rkey_.value);
    }
    Registered(const Registered&) = delete;
    Registered& operator=(const Registered&) = delete;
    LKey lkey() const override { return region_->lkey(); }
    RKey rkey() const override { return rkey_; }
    std::byte* data() override { return region_->data(); }
    size_t size() const override { return region_->size(); }

   private:
    const std::unique_ptr<MemoryRegion> region_;
    FakeDevice& device_;
    RKey rkey_{};
  };

  class Domain final : public DeviceDomain {
   public:
    Domain(std::unique_ptr<ProtectionDomain> domain, std::shared_ptr<const LocalKeyMap> keys, FakeDevice& device)
        : domain_(std::move(domain)), keys_(std::move(keys)), device_(device) {}
    Result<std::unique_ptr<MemoryRegion>> RegisterMemory(std::byte* data, size_t size, Access access) override {
      return domain_->RegisterMemory(data, size, access);
    }
    Result<std::unique_ptr<TermRegion>> RegisterTermRegion(const TermRegionOptions&) override {
      return Status::Error(EOPNOTSUPP, "a device alone");
    }
    Result<std::unique_ptr<QueuePair>> CreateQueuePair(const QueuePairOptions& options) override {
      QueuePairOptions own = options;
      if (auto* const shared = static_cast<TranslatingSharedReceives*>(options.shared_receives); shared != nullptr) {
        own.shared_receives = shared->inner();
      }
      ASSIGN_OR_RETURN(std::unique_ptr<QueuePair> pair, domain_->CreateQueuePair(own));
      return std::unique_ptr<QueuePair>(std::make_unique<TranslatingQueuePair>(std::move(pair), keys_));
    }
    Result<std::unique_ptr<SharedReceiveQueue>> CreateSharedReceiveQueue(
        const SharedReceiveQueueOptions& options) override {
      ASSIGN_OR_RETURN(std::unique_ptr<SharedReceiveQueue> queue, domain_->CreateSharedReceiveQueue(options));
      return std::unique_ptr<SharedReceiveQueue>(std::make_unique<TranslatingSharedReceives>(std::move(queue), keys_));
    }
    Result<std::unique_ptr<MemoryRegion>> RegisterForeign(std::byte* data, size_t size, Access access) override {
      if (device_.registrations_left-- <= 0) {
        return Status::Error(ENOMEM, "injected: register memory");
      }
      // For peers the software RNIC registers memory of its own only.
      const Access local = Has(access, Access::kLocalWrite) ? Access::kLocalWrite : Access{};
      ASSIGN_OR_RETURN(std::unique_ptr<MemoryRegion> region, domain_->RegisterMemory(data, size, local));
      return std::unique_ptr<MemoryRegion>(
          std::make_unique<Registered>(std::move(region), Has(access, Access::kRemoteRead), device_));
    }
    Result<std::unique_ptr<DeviceTermRegion>> RegisterTerm(const TermMappings& mappings) override {
      auto region = std::make_unique<FakeDeviceTermRegion>(mappings);
      device_.term_region = region.get();
      return std::unique_ptr<DeviceTermRegion>(std::move(region));
    }

   private:
    const std::unique_ptr<ProtectionDomain> domain_;
    const std::shared_ptr<const LocalKeyMap> keys_;
    FakeDevice& device_;
  };

  const std::unique_ptr<Nic> nic_;
  uint32_t next_rkey_ = 1;
};

}  // namespace termfs::driver
