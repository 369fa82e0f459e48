// SPDX-License-Identifier: Apache-2.0
//
// Files that were cut within a page, at start: after a loss of memory the SSD may show there what the truncation cut
// off (see truncate.cc).
//
// Thread-safety: before the first request is served.
#pragma once

#include "base/result.h"
#include "fs/server/kept_memory.h"
#include "metadata/namespace.h"
#include "tlib/server/server.h"

namespace termfs::fs::server {

// Zeroes what a cut leaves in doubt, durably, when memory was lost; forgets the cuts that say nothing any more. Returns
// how many files were zeroed.
Result<uint64_t> RestoreCuts(metadata::Namespace& names, tlib::server::Server& server, MemoryLeft memory);

}  // namespace termfs::fs::server
