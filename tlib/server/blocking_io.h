// SPDX-License-Identifier: Apache-2.0
//
// A batch of accesses carried out by blocking system calls, one after the other.
//
// Thread-safety: any thread; blocks. Errors: as BlockDevice.
#pragma once

#include <span>

#include "base/result.h"
#include "tlib/server/block_device.h"

namespace termfs::tlib::server {

// `start`: where in the file the device begins.
void RunBlocking(int fd, uint64_t start, std::span<BlockIo> ios);
Status FlushBlocking(int fd);

}  // namespace termfs::tlib::server
