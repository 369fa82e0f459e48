// SPDX-License-Identifier: Apache-2.0
//
// termfs.toml: the settings of a volume (volume.h), strict. What is written here is read back equal.
//
// Thread-safety: free functions. Errors: EINVAL: the text names the key and what it may be; EUCLEAN: no such file.
#pragma once

#include <cstdint>
#include <string>

#include "base/page.h"
#include "base/result.h"
#include "fs/server/volume.h"

namespace termfs::fs::server {

// Every region is registered with the software RNIC, which numbers frames in 30 bits; two of the numbers are no frames.
inline constexpr uint64_t kMaxCapacity = ((uint64_t{1} << 30) - 2) << kPageBits;

inline constexpr uint64_t kMinMetadataMemory = uint64_t{32} << 20;
inline constexpr uint64_t kMaxMetadataMemory = uint64_t{1} << 40;

// Refuses what is out of range, by the names the keys have in the file.
Status CheckSettings(const VolumeSettings& settings);
Result<VolumeSettings> ParseSettings(const std::string& text, const std::string& name_for_errors);
std::string FormatSettings(const VolumeSettings& settings);
// Replaces DIRECTORY/termfs.toml at once and durably.
Status SaveSettings(const std::string& directory, const VolumeSettings& settings);

}  // namespace termfs::fs::server
