// SPDX-License-Identifier: Apache-2.0
//
// What is mounted on directories of a mount, as far as this process's mount table knows.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "base/result.h"

namespace termfs::mount {

// The device number of the file system that is mounted there. Asks the kernel only, not the file system.
Result<dev_t> DeviceOf(const std::string& mountpoint);

// Whether anything is mounted below a mount of that device; also when the mount table cannot be read.
bool AnyMountBelow(dev_t device);
// The same by a table in the form of /proc/PID/mountinfo.
bool AnyMountBelow(std::string_view table, dev_t device);

}  // namespace termfs::mount
