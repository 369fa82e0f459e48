// SPDX-License-Identifier: Apache-2.0
//
// What is said of the file descriptors of this process, when they run short.
//
// Thread-safety: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace termfs::tlib::server {

// EMFILE: this process has not `wanted` file descriptors left, as far as the lowest free one tells.
Status CheckDescriptors(uint32_t wanted);
// What failed for want of descriptors in this process says whose they are; everything else is returned as it is.
Status NameDescriptors(Status status);

}  // namespace termfs::tlib::server
