// SPDX-License-Identifier: Apache-2.0
//
// A volume's secret: who knows it may administer and mount the volume from another host. A file of one line of 64
// hexadecimal digits that nobody but its owner may read.
//
// Thread-safety: values and free functions.
// Errors:        EACCES: others may read or change the file; EINVAL: it holds no secret; otherwise what the kernel
// says.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "base/result.h"

namespace termfs::tlib {

using Secret = std::array<std::byte, 32>;

// REQUIRES of the file: a regular one, of the caller or of root, with no permissions for group and others.
Result<Secret> LoadSecret(const std::string& path);
// Makes a secret at random in a new file that only its owner may read, durably, unless there is a file.
Result<Secret> LoadOrMakeSecret(const std::string& path);

}  // namespace termfs::tlib
