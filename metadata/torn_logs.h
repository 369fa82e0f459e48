// SPDX-License-Identifier: Apache-2.0
//
// Before RocksDB opens its folder: the logs that a killed process or a loss of power left are cut back to their last
// whole record, and synced. RocksDB can read torn logs itself; but it keeps them, with the note that they are done
// with, and refuses to start ("SST file is ahead of WALs") when the process that read one dies before its first commit.
// And what a killed process committed may be in the kernel's cache only, while all that is synced from now on builds on
// it.
//
// Thread-safety: one thread, and nobody has the store open.
// Errors:        EIO and those of the file system. A file that is no log of the known format is left as it is.
#pragma once

#include <string>

#include "base/result.h"

namespace termfs::metadata {

// Returns how many logs there are.
Result<size_t> CutTornLogs(const std::string& folder);

}  // namespace termfs::metadata
