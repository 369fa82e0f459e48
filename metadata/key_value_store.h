// SPDX-License-Identifier: Apache-2.0
//
// The seam between the namespace and the engine that keeps it: an ordered map from byte strings to byte strings,
// changed by transactions. It is narrow on purpose, so that a distributed engine can take RocksDB's place.
//
// Isolation. A Reader from Snapshot() sees one instant. A Transaction sees its own writes over committed data:
//   1. A key that it named in GetForUpdate, Put or Delete is its own until it ends: of two transactions that overlap
//      and name the same key, at most one commits; the other gets EAGAIN, from the call that found out or from Commit.
//   2. Other reads (Get, Scan) return data committed no earlier than the transaction's first call. They are current
//      at Commit where a *guard* protects them: a key that the transaction named before it read, and that
//      every writer of the data names too. (The namespace: an inode guards its dentries, extents and attributes.)
//
// Thread-safety: a KeyValueStore from any thread; a Reader or Transaction from one thread at a time.
// Ownership:     Readers and Transactions must end before their store does.
// Errors:        EAGAIN is a conflict: end the transaction and run it again (Retry does). EIO: the engine failed.
//                ENOSPC: its disk is full; reads go on, removals as long as there is a reserve, and everything when
//                there is room again.
// Durability:    Commit survives a crash of the process; power loss only after SyncWal. Always atomic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/metrics.h"
#include "base/result.h"

namespace termfs::metadata {

struct KeyValue {
  std::string key;
  std::string value;
};

enum class ScanOrder { kAscending, kDescending };

class Reader {
 public:
  virtual ~Reader() = default;

  // The value of `key`, or nothing when it has none.
  virtual Result<std::optional<std::string>> Get(std::string_view key) = 0;

  // At most `limit` pairs with begin <= key < end, in order; kDescending starts at the greatest.
  virtual Result<std::vector<KeyValue>> Scan(std::string_view begin, std::string_view end, size_t limit,
                                             ScanOrder order = ScanOrder::kAscending) = 0;
};

class Transaction : public Reader {
 public:
  // Get, and claims the key (present or not) as a write would.
  virtual Result<std::optional<std::string>> GetForUpdate(std::string_view key) = 0;
  // Says that the transaction adds records. ENOSPC: the store keeps the room that is left for those that do not.
  virtual Status Grows() { return Status::Ok(); }
  // Says that the transaction removes more than it adds: it may use what the store keeps for that on a full disk.
  virtual void Frees() {}
  virtual Status Put(std::string_view key, std::string_view value) = 0;
  virtual Status Delete(std::string_view key) = 0;

  // All of it or nothing. After any error nothing of it is visible. REQUIRES: called at most once, as the last call.
  // A Transaction destroyed without Commit leaves no trace.
  virtual Status Commit() = 0;
};

class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;

  virtual std::unique_ptr<Transaction> Begin() = 0;
  virtual std::unique_ptr<Reader> Snapshot() = 0;
  // A Snapshot that never waits for a disk: its reads fail with EAGAIN where they would have to.
  virtual std::unique_ptr<Reader> MemorySnapshot() { return Snapshot(); }

  // Returns when everything committed before the call survives power loss.
  virtual Status SyncWal() = 0;

  // A good deal more can be added before transactions that do are refused for lack of room.
  virtual bool IsRoomy() { return true; }
  // Frees up to `bytes` of the disk out of what the store keeps, for small files beside it.
  virtual void MakeRoom(uint64_t /*bytes*/) {}
  // Why transactions that write would be refused now; ok: they would not.
  virtual Status Health() { return Status::Ok(); }

  // Bytes of memory from now on, for what is cached and for what is not in the store's files yet. EOPNOTSUPP: it has no
  // such limit.
  virtual Status SetMemory(uint64_t) { return Status::Error(EOPNOTSUPP, "the metadata store has no such limit"); }
  // metadata_memory_bytes, the limit, and metadata_memory_used_bytes, in which metadata_memtable_bytes are contained;
  // metadata_table_bytes, the size of its files; metadata_cache_hits_total and metadata_cache_misses_total, of blocks;
  // metadata_read_bytes_total, of its files, those by compaction included, which metadata_compaction_read_bytes_total
  // and metadata_compaction_written_bytes_total count once they have ended; metadata_compactions, that have not.
  // Nothing: it does not count.
  virtual std::vector<MetricValue> Metrics() { return {}; }
};

// Calls `visit` for every pair with begin <= key < end, in order, until that fails.
Status ForEach(Reader& reader, std::string begin, std::string_view end,
               const std::function<Status(const KeyValue&)>& visit);

inline constexpr int kMaxAttempts = 200;

// Runs `body` in a transaction and commits it; on a conflict again, in a new one, at most kMaxAttempts times (then
// EBUSY). `body` must not keep anything from an attempt that conflicted; any error other than EAGAIN ends it.
Status Retry(KeyValueStore& store, const std::function<Status(Transaction&)>& body);

}  // namespace termfs::metadata
