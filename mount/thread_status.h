// SPDX-License-Identifier: Apache-2.0
//
// What /proc/TID/status says of a thread.
//
// Thread-safety: any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace termfs::mount {

// The whole text. ENOENT, ESRCH: there is no such thread (any more).
Result<std::string> ReadThreadStatus(pid_t thread);

// The set of bits in the line that begins with `name`, as "\nSigBlk:"; empty when there is no such line.
uint64_t SetInStatus(std::string_view status, std::string_view name);

}  // namespace termfs::mount
