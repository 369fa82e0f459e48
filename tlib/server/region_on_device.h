// SPDX-License-Identifier: Apache-2.0
//
// A Region on given devices: what Region::Open does after it has opened the files, and where tests put a device that
// fails or crashes by hand.
//
// Thread-safety, errors: as Region::Open.
#pragma once

#include <functional>
#include <memory>

#include "base/result.h"
#include "tlib/server/block_device.h"
#include "tlib/server/device_file.h"
#include "tlib/server/region.h"

namespace termfs::tlib::server {

struct RegionDevices {
  std::unique_ptr<BlockDevice> pages;
  std::unique_ptr<BlockDevice> log;
  // Notes on the SSD, durably, that the region has so many pages; it may block.
  std::function<Status(uint64_t pages)> label = [](uint64_t) { return Status::Ok(); };
};

// Whether the kind's device is a mapping: what takes page faults cannot change its size.
bool MapsDevice(driver::RegionKind kind);
// EINVAL: options that no region can have.
Status CheckRegionOptions(const RegionOptions& options);
// EUCLEAN: a device that shrank; no page behind its end may be promised to anyone.
Status CheckDeviceSize(const BlockDevice& device, const RegionOptions& options);

Result<RegionDevices> OpenRegionDevices(const RegionOptions& options, DeviceUse use = DeviceUse::kChange);
Result<std::unique_ptr<Region>> OpenRegionOn(const RegionOptions& options, RegionEnvironment environment,
                                             RegionDevices devices);

}  // namespace termfs::tlib::server
