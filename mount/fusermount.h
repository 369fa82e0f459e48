// SPDX-License-Identifier: Apache-2.0
//
// Unmounting for who is not root.
#pragma once

#include <string>

#include "base/result.h"

namespace termfs::mount {

// EBUSY: it could not; what it says itself goes to standard error.
Status RunFusermount(const std::string& mountpoint, bool lazily);

}  // namespace termfs::mount
