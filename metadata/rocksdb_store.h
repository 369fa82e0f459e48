// SPDX-License-Identifier: Apache-2.0
//
// A KeyValueStore on RocksDB: pessimistic transactions, so that a contended key is waited for and seldom a conflict.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"
#include "metadata/key_value_store.h"

namespace termfs::metadata {

struct RocksDbOptions {
  bool create_if_missing = false;
  bool read_only = false;         // nothing in the directory is changed, and transactions that write get EROFS
  bool cut_damaged_logs = false;  // instead of EBADMSG; see torn_logs.h
  uint64_t memory_bytes = uint64_t{256} << 20;  // cache of the tables' blocks and what is not in tables yet, together
  size_t wal_bytes = size_t{64} << 20;  // about; more is flushed to tables. As much disk is kept free (disk_room.h)
  std::chrono::milliseconds lock_timeout{1000};  // a key waited for so long is a conflict
};

// Opens the store in the directory `path`. ENOENT: none there (and not create_if_missing). EBUSY: another process has
// it open. EUCLEAN: damaged; EBADMSG: a log is, and the text says what can be done. ENOSPC, EIO: the disk. Blocks while
// it replays its log.
Result<std::unique_ptr<KeyValueStore>> OpenRocksDb(const std::string& path, const RocksDbOptions& options = {});

}  // namespace termfs::metadata
