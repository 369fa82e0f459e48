// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <memory>
#include <utility>

#include "driver/verbs/completion_queue.h"
#include "driver/verbs/device.h"
#include "driver/verbs/memory.h"
#include "driver/verbs/queue_pair.h"
#include "driver/verbs/shared_receives.h"
#include "driver/verbs/term_region.h"
#include "driver/verbs/verbs.h"

namespace termfs::driver {
namespace verbs {
namespace {

class VerbsDomain final : public DeviceDomain {
 public:
  explicit VerbsDomain(std::shared_ptr<Domain> domain) : domain_(std::move(domain)) {}

  Result<std::unique_ptr<MemoryRegion>> RegisterMemory(std::byte* data, size_t size, Access access) override {
    return VerbsMemoryRegion::Create(domain_, data, size, access);
  }
  Result<std::unique_ptr<TermRegion>> RegisterTermRegion(const TermRegionOptions& /*options*/) override {
    return Status::Error(EOPNOTSUPP, "serve a region over " + domain_->device().name() + " alone");
  }
  Result<std::unique_ptr<QueuePair>> CreateQueuePair(const QueuePairOptions& options) override {
    if (options.network && options.network->wire != Wire::kRoce) {
      return Status::Error(ENOTSUP, "the server, or this mount, uses an RDMA device: iWARP is for the software RNIC");
    }
    return VerbsQueuePair::Create(domain_, options);
  }
  Result<std::unique_ptr<SharedReceiveQueue>> CreateSharedReceiveQueue(
      const SharedReceiveQueueOptions& options) override {
    return VerbsSharedReceives::Create(domain_, options);
  }
  Result<std::unique_ptr<MemoryRegion>> RegisterForeign(std::byte* data, size_t size, Access access) override {
    return VerbsMemoryRegion::Create(domain_, data, size, access, /*foreign=*/true);
  }
  Result<std::unique_ptr<DeviceTermRegion>> RegisterTerm(const TermMappings& mappings) override {
    return VerbsTermRegion::Create(domain_, mappings);
  }

 private:
  const std::shared_ptr<Domain> domain_;
};

class VerbsNic final : public RdmaDevice {
 public:
  explicit VerbsNic(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  std::string transport(bool /*network*/) const override {
    return "verbs " + device_->name() + (device_->link() == roce::LinkLayer::kEthernet ? " (RoCEv2)" : " (InfiniBand)");
  }
  std::string name() const override { return device_->name(); }
  Status CheckPorts() override { return device_->CheckPorts(); }
  Status CheckTermRegions() override { return verbs::CheckTermRegions(device_); }
  Result<std::unique_ptr<Memory>> AllocateMemory(const MemoryOptions& options) override {
    return allocations_->Allocate(allocations_, options);
  }
  Result<std::unique_ptr<ProtectionDomain>> CreateProtectionDomain() override {
    ASSIGN_OR_RETURN(std::shared_ptr<Domain> domain, Domain::Create(device_, allocations_));
    return std::unique_ptr<ProtectionDomain>(std::make_unique<VerbsDomain>(std::move(domain)));
  }
  Result<std::unique_ptr<DeviceDomain>> CreateDeviceDomain(std::shared_ptr<const LocalKeyMap> keys) override {
    ASSIGN_OR_RETURN(std::shared_ptr<Domain> domain, Domain::Create(device_, allocations_, std::move(keys)));
    return std::unique_ptr<DeviceDomain>(std::make_unique<VerbsDomain>(std::move(domain)));
  }
  Result<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t capacity) override {
    return VerbsCompletionQueue::Create(device_, capacity);
  }

 private:
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Allocations> allocations_ = std::make_shared<Allocations>();
};

}  // namespace
}  // namespace verbs

Result<std::unique_ptr<Nic>> CreateVerbsNic(const std::string& device) {
  ASSIGN_OR_RETURN(std::shared_ptr<verbs::Device> opened, verbs::Device::Open(device));
  return std::unique_ptr<Nic>(std::make_unique<verbs::VerbsNic>(std::move(opened)));
}

Result<std::unique_ptr<RdmaDevice>> OpenRdmaDevice(const std::string& device) {
  ASSIGN_OR_RETURN(std::shared_ptr<verbs::Device> opened, verbs::Device::Open(device));
  return std::unique_ptr<RdmaDevice>(std::make_unique<verbs::VerbsNic>(std::move(opened)));
}

}  // namespace termfs::driver
