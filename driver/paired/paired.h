// SPDX-License-Identifier: Apache-2.0
//
// A Nic of two, for servers: peers of this host are served by the software RNIC, through shared memory, those of other
// hosts by an RDMA device. Queue pairs with QueuePairOptions::network are the device's, all others the software RNIC's
// own objects, and so is the memory; the device has it registered besides.
//
//   local keys    the software RNIC's; the device's queue pairs translate them (key_map.h)
//   remote keys   of memory regions: for peers of this host only. Of a TermRegion: TermRegion::keys tells those for a
//                 peer over the network, and how it READs
//   numbers       of the device's queue pairs have kDeviceMark set
//
// Where the device's driver has TeRM memory regions, regions of kind kTerm have sparse frames, and peers over the
// network READ through its page table. On any other device the DRAM tier is pinned, and they READ it by validation
// (ReadWay::kValidated). RegionTransport tells.
#pragma once

#include <memory>

#include "base/result.h"
#include "driver/device.h"
#include "driver/nic.h"

namespace termfs::driver {

inline constexpr uint32_t kDeviceMark = 1U << 31;  // no RNIC has so many queue pairs

// Errors: the device's CheckPorts and, where it is not EOPNOTSUPP, CheckTermRegions.
Result<std::unique_ptr<Nic>> CreatePairedNic(std::unique_ptr<Nic> local, std::unique_ptr<RdmaDevice> device);

}  // namespace termfs::driver
