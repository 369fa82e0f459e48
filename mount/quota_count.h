// SPDX-License-Identifier: Apache-2.0
//
// The wait for the count of what was in a directory before it had a quota.
//
// Thread-safety: free functions.
#pragma once

#include <chrono>
#include <functional>

#include "base/result.h"
#include "fs/client/quota.h"

namespace termfs::mount {

// Looks until all is counted, however long that takes. EIO: the server says that it does not go on, for all of
// `patience`. Other errors are those of `look`.
Result<fs::client::QuotaStatus> AwaitCount(const std::function<Result<fs::client::QuotaStatus>()>& look,
                                           std::chrono::milliseconds patience);

}  // namespace termfs::mount
