// SPDX-License-Identifier: Apache-2.0
//
// How RocksDB is set up for records of the namespace, and the memory that it may use.
//
// Thread-safety: EngineMemory from any thread; the rest are free functions.
// Ownership:     an EngineMemory outlives the engines that were opened with it.
#pragma once

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/statistics.h>
#include <rocksdb/write_buffer_manager.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/metrics.h"
#include "metadata/rocksdb_store.h"

namespace termfs::metadata {

// One budget: blocks of tables, their indexes and filters, and what is not in tables yet. What the latter takes, the
// cache of blocks does without.
class EngineMemory {
 public:
  explicit EngineMemory(uint64_t bytes);

  const std::shared_ptr<rocksdb::Cache>& cache() const { return cache_; }
  const std::shared_ptr<rocksdb::WriteBufferManager>& write_buffers() const { return write_buffers_; }
  // The cache has it at once, a smaller one by evicting.
  void Resize(uint64_t bytes);
  // Of one write buffer, of which there are kWriteBuffers at most.
  static uint64_t WriteBufferBytes(uint64_t memory_bytes, uint64_t wal_bytes);

 private:
  const std::shared_ptr<rocksdb::Cache> cache_;
  const std::shared_ptr<rocksdb::WriteBufferManager> write_buffers_;
};

// Options for `memory`, with counters in `options.statistics`.
rocksdb::Options EngineOptions(const RocksDbOptions& options, const EngineMemory& memory);
// For a scan of begin <= key < end, in that order if `ascending`: without a look into tables that hold no key with what
// all those keys begin with, where that is known. `options` keeps its other fields.
void NarrowScan(std::string_view begin, std::string_view end, bool ascending, rocksdb::ReadOptions& options);
// See KeyValueStore::Metrics.
std::vector<MetricValue> EngineMetrics(rocksdb::DB& db, const EngineMemory& memory);

}  // namespace termfs::metadata
