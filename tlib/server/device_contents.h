// SPDX-License-Identifier: Apache-2.0
//
// What a device seems to hold, for the question whether it may be overwritten.
//
// Thread-safety: any thread; blocks.
#pragma once

#include <string>

#include "base/result.h"

namespace termfs::tlib::server {

// For people: "an ext4 file system", "a gpt partition table", "the region of the termfs volume UUID". Empty: nothing
// that is known.
Result<std::string> DeviceContents(const std::string& path);

}  // namespace termfs::tlib::server
