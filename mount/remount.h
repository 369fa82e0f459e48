// SPDX-License-Identifier: Apache-2.0
//
// Remounting, as mount(8) has its helper do it: the kernel takes the new flags, and the mount's process goes by them
// from then on.
//
// Thread-safety: free functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace termfs::mount {

// What follows "remount" in `options`, and what is in front of it, without what mount(8) copies from the mount table
// and only FUSE itself understands; nothing: `options` do not ask for a remount.
std::optional<std::string> RemountOptions(std::string_view options);

// The flags of mount(2) that `options` name; the last one counts. One that is not named is not set: mount(8) names all
// that are to be, and passes none on that is a default ("suid", "atime").
unsigned long FlagsNamed(std::string_view options);

// Returns when all that was asked for is in force. EINVAL: `options` are wrong, or differ from those of the mount in
// what no remount changes; the text names the option. EBUSY: files are open for writing. EPERM: not root. Other errors
// are those of DescribeMount.
Status Remount(const std::string& mountpoint, const std::string& options);

}  // namespace termfs::mount
