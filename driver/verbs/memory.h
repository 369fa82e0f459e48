// SPDX-License-Identifier: Apache-2.0
//
// Memory, protection domains and memory regions of libibverbs.
//
// Thread-safety: any thread.
#pragma once

#include <map>
#include <memory>

#include "base/mutex.h"
#include "driver/device.h"
#include "driver/nic.h"
#include "driver/verbs/device.h"

namespace termfs::driver::verbs {

// What this Nic has allocated, and whether peers may write there.
class Allocations {
 public:
  Result<std::unique_ptr<Memory>> Allocate(std::shared_ptr<Allocations> self, const MemoryOptions& options)
      EXCLUDES(mutex_);
  void Forget(const std::byte* data) EXCLUDES(mutex_);
  // EINVAL, EPERM: peers must not have that access to this range.
  Status Check(const std::byte* data, size_t size, Access access) EXCLUDES(mutex_);

 private:
  struct Allocation {
    size_t size;
    bool peers_may_write;
  };
  Mutex mutex_;
  std::map<const std::byte*, Allocation> allocations_ GUARDED_BY(mutex_);
};

class Domain {
 public:
  static Result<std::shared_ptr<Domain>> Create(std::shared_ptr<Device> device,
                                                std::shared_ptr<Allocations> allocations,
                                                std::shared_ptr<const LocalKeyMap> keys = nullptr);

  Device& device() { return *device_; }
  ibv_pd* get() const { return domain_.get(); }
  Allocations& allocations() { return *allocations_; }
  // By whose local keys queue pairs name memory; null: the device's own.
  const LocalKeyMap* keys() const { return keys_.get(); }

 private:
  Domain(std::shared_ptr<Device> device, std::shared_ptr<Allocations> allocations,
         std::shared_ptr<const LocalKeyMap> keys)
      : device_(std::move(device)), allocations_(std::move(allocations)), keys_(std::move(keys)) {}

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Allocations> allocations_;
  const std::shared_ptr<const LocalKeyMap> keys_;
  DomainPtr domain_;
};

// Local work requests name memory by its address, remote ones by its offset in the region: two keys with two address
// spaces, so two regions of the device's.
class VerbsMemoryRegion final : public MemoryRegion {
 public:
  // `foreign`: another RNIC has allocated it.
  static Result<std::unique_ptr<MemoryRegion>> Create(std::shared_ptr<Domain> domain, std::byte* data, size_t size,
                                                      Access access, bool foreign = false);

  LKey lkey() const override { return {local_->lkey}; }
  RKey rkey() const override { return {remote_ != nullptr ? remote_->rkey : 0}; }
  std::byte* data() override { return data_; }
  size_t size() const override { return size_; }

 private:
  VerbsMemoryRegion(std::shared_ptr<Domain> domain, std::byte* data, size_t size)
      : domain_(std::move(domain)), data_(data), size_(size) {}

  const std::shared_ptr<Domain> domain_;
  std::byte* const data_;
  const size_t size_;
  RegionPtr local_;
  RegionPtr remote_;  // null: no access from afar
};

}  // namespace termfs::driver::verbs
