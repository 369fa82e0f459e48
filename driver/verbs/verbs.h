// SPDX-License-Identifier: Apache-2.0
//
// The RNIC seam over libibverbs: RoCE devices, those of hardware and the kernel's Soft-RoCE. Queue pairs are connected
// by the same endpoints as those of the software RNIC's network half, so that the two kinds meet.
//
// What differs from the software RNIC, because verbs has it so:
//  * A send that meets no receive waits for QueuePairOptions::rnr_timeout where that is below kLongestRnrTimeout, else
//    for as long as the peer answers.
//  * Regions are reached, not registered here: a server pairs the device with the software RNIC (driver/paired).
//
// Errors: ENODEV: no such device. What a device refuses comes with its errno.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/result.h"
#include "driver/device.h"
#include "driver/nic.h"

namespace termfs::driver {

inline constexpr std::chrono::milliseconds kLongestRnrTimeout{60};

// `device`: its name ("rxe0", "mlx5_0"), or an address of the host that a device has.
Result<std::unique_ptr<Nic>> CreateVerbsNic(const std::string& device);
// The same, to be paired.
Result<std::unique_ptr<RdmaDevice>> OpenRdmaDevice(const std::string& device);

}  // namespace termfs::driver
