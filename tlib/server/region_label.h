// SPDX-License-Identifier: Apache-2.0
//
// RegionLabel: what the SSD of a region says about itself, so that no region is served from another volume's device,
// or from a disk that was exchanged under its name. The first megabyte of the device belongs to it; pages follow.
//
// In the first 4 KiB (numbers little-endian), zeros after it:
//
//   0  magic "TFSREGIN"   8  version (4), CRC-32C of the label with this field 0 (4)   16  pages   24  volume (48,
//   zeros)
//
// Thread-safety: free functions, any thread; they block.
// Errors:        ENOENT: no label there; EUCLEAN: a damaged one, or another's than was asked for; EPROTONOSUPPORT: one
//                of another version. The text names the device.
// Durability:    a label that was written is durable.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace termfs::tlib::server {

inline constexpr uint64_t kRegionStart = uint64_t{1} << 20;  // bytes before the first page

struct RegionLabel {
  uint64_t pages = 0;
  std::string volume;  // at most 47 characters
  bool operator==(const RegionLabel&) const = default;
};

// Clears the first megabyte, with what partition table or file system began there, and labels it.
Status WriteRegionLabel(const std::string& path, const RegionLabel& label);
// Replaces the label that is there. It lies within one sector, so power loss leaves the old or the new one.
Status ChangeRegionLabel(const std::string& path, const RegionLabel& label);
// `fd`: of the device, opened with O_DIRECT or without; `path` for errors.
Result<RegionLabel> ReadRegionLabel(int fd, const std::string& path);
// That the label is `expected`, or the same of a larger region: the capacity's truth is in the volume's superblock, and
// a change of it that a crash cut short leaves the label larger, never smaller.
Status CheckRegionLabel(int fd, const std::string& path, const RegionLabel& expected);

}  // namespace termfs::tlib::server
