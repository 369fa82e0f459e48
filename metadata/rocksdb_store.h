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

namespace rocksdb {
class Env;
}

namespace termfs::metadata {

struct RocksDbOptions {
  bool create_if_missing = false;
  bool read_only = false;         // nothing in the directory is changed, and transactions that write get EROFS
  bool cut_damaged_logs = false;  // instead of EBADMSG; see torn_logs.h
  uint64_t memory_bytes = uint64_t{256} << 20;  // cache of the tables' blocks and what is not in tables yet, together
  size_t wal_bytes = size_t{64} << 20;  // about; more is flushed to tables. Three quarters are kept free (disk_room.h)
  uint64_t reserve_bytes = 0;           // of disk, in the file `reserve`, for removals on a full disk (disk_reserve.h)
  std::chrono::milliseconds lock_timeout{1000};  // a key waited for so long is a conflict
  rocksdb::Env* files = nullptr;                 // that tests let fail, and that outlives the store; null: the system's
};

// Opens the store in the directory `path`. ENOENT: none there (and not create_if_missing). EBUSY: another process has
// it open. EUCLEAN: damaged; EBADMSG: a log is, and the text says what can be done. ENOSPC, EIO: the disk. Blocks while
// it replays its log.
Result<std::unique_ptr<KeyValueStore>> OpenRocksDb(const std::string& path, const RocksDbOptions& options = {});

}  // namespace termfs::metadata
