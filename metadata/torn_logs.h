// SPDX-License-Identifier: Apache-2.0
//
// Before RocksDB opens its folder: the logs that a killed process or a loss of power left are cut back to their last
// whole record, and synced. RocksDB can read torn logs itself; but it keeps them, with the note that they are done
// with, and refuses to start ("SST file is ahead of WALs") when the process that read one dies before its first commit.
// And what a killed process committed may be in the kernel's cache only, while all that is synced from now on builds on
// it.
//
// What a killed process leaves ends with its last write. Where whole records stand behind bytes that are none, those
// bytes have been whole once: a damage, and more is lost with what stands behind it than anybody may decide alone.
//
// Thread-safety: one thread, and nobody has the store open.
// Errors:        EIO and those of the file system. A file that is no log of the known format is left as it is.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/result.h"

namespace termfs::metadata {

struct DamagedLog {
  std::string path;
  size_t whole = 0;   // bytes, of the records before the damage
  size_t behind = 0;  // bytes, from there on
};
// Changes nothing.
Result<std::vector<DamagedLog>> FindDamagedLogs(const std::string& folder);
// For people: what it is and what can be done.
std::string Describe(const DamagedLog& log);

enum class Damage {
  kRefuse,   // EBADMSG, and nothing is cut
  kSetAside  // what is cut off is kept in a file of the log's name and ".cut-off"
};
// Returns how many logs there are.
Result<size_t> CutTornLogs(const std::string& folder, Damage damage);

}  // namespace termfs::metadata
