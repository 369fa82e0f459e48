// SPDX-License-Identifier: Apache-2.0
//
// DeviceFile: the file or block device that holds a region's pages or its written marks, as a descriptor.
//
// Thread-safety: free functions, any thread; they block.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace termfs::tlib::server {

struct DeviceFile {
  UniqueFd fd;
  uint64_t bytes = 0;         // from `start` on
  uint64_t start = 0;         // what lies before is not the device's
  uint32_t alignment = 4096;  // what O_DIRECT asks for; 1 without it
};

enum class OpenMode : uint8_t { kDirect, kBuffered };
enum class DeviceUse : uint8_t { kChange, kLook };  // kLook: of a file system that is read only, too

// EPERM: another user could change the file, or where its path leads to (base/trusted_path.h); it may be a link.
// EINVAL: the file system does not support O_DIRECT, or its blocks are larger than a page. EUCLEAN: it is shorter than
// `start`. EBUSY: a block device that is mounted or in use.
Result<DeviceFile> OpenDeviceFile(const std::string& name, OpenMode mode, uint64_t start = 0,
                                  DeviceUse use = DeviceUse::kChange);

// Allocates what the file lacks of its blocks: a copy of it may have holes. Blocks. ENOSPC: they do not fit.
Status FillHoles(const DeviceFile& file);

// Makes the file that holds `old_bytes` hold `bytes`, both from `start` on; every new block is allocated. Returns what
// it holds then: for a block device, which is checked for size instead, all there is. ENOSPC: it does not fit, the file
// is as it was.
Result<uint64_t> ResizeDeviceFile(const DeviceFile& file, uint64_t old_bytes, uint64_t bytes);

// Makes a file of `bytes`, every block allocated, so that later writes neither fail for space nor wait for allocation.
// A block device is checked for size instead. EEXIST: the file is there; ENOSPC: it does not fit, nothing is left
// behind. EPERM: another user could change where the path leads to. `progress` (may be null) is told bytes done and
// total.
Status MakeDeviceFile(const std::string& path, uint64_t bytes, const std::function<void(uint64_t, uint64_t)>& progress);
// Removes the file that MakeDeviceFile made; of a block device, nothing. REQUIRES: it returned without an error.
void UnmakeDeviceFile(const std::string& path);

}  // namespace termfs::tlib::server
