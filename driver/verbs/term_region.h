// SPDX-License-Identifier: Apache-2.0
//
// TeRM memory regions of the kernel's driver (driver/kernel): a region is on demand, follows the page table of a
// mapping, and has the driver's bitmap mapped. Beside it a plain region on demand, of the other mapping, for local use.
//
// Thread-safety, errors: driver/device.h.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>

#include "driver/device.h"
#include "driver/verbs/memory.h"

namespace termfs::driver::verbs {

// EPROTO: the driver of `device` speaks that version, this program another one.
Status CheckTermVersion(const std::string& device, uint32_t version);
// RdmaDevice::CheckTermRegions.
Status CheckTermRegions(const std::shared_ptr<Device>& device);

class VerbsTermRegion final : public DeviceTermRegion {
 public:
  static Result<std::unique_ptr<DeviceTermRegion>> Create(std::shared_ptr<Domain> domain, const TermMappings& mappings);
  ~VerbsTermRegion() override;

  RKey rkey() const override { return {region_->rkey}; }
  const Pattern& pattern() const override { return pattern_; }
  uint64_t pages() const override { return mappings_.pages; }
  LKey lkey() const override { return {local_->lkey}; }
  Status Show(PageIndex first, uint32_t count) override;
  void Hide(PageIndex page) override;
  uint64_t ShownOf64(uint64_t word) const override { return bitmap_[word].load(std::memory_order_acquire); }
  uint64_t magic_reads() const override;

 private:
  VerbsTermRegion(std::shared_ptr<Domain> domain, const TermMappings& mappings)
      : domain_(std::move(domain)), mappings_(mappings) {}
  Status Query();

  const std::shared_ptr<Domain> domain_;
  const TermMappings mappings_;
  RegionPtr region_;
  RegionPtr local_;
  Pattern pattern_;
  std::span<const std::atomic<uint64_t>> bitmap_;
};

}  // namespace termfs::driver::verbs
