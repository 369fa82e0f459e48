// SPDX-License-Identifier: Apache-2.0
#include "metadata/rocksdb_engine.h"

#include <rocksdb/filter_policy.h>
#include <rocksdb/slice_transform.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <string>

#include "metadata/block_memory.h"
#include "metadata/keys.h"
#include "metadata/rocksdb_files.h"

namespace termfs::metadata {

namespace {

constexpr int kWriteBuffers = 3;      // at most: one is filled, the others are being written to tables
constexpr uint64_t kBufferShare = 8;  // of the memory one write buffer is an eighth at most
// Of the cache. A shard holds many blocks: of a table that was written before indexes and filters were partitioned,
// these are one block each, of some MiB. More than a few shards are of use to more threads than there are.
constexpr uint64_t kLeastShard = uint64_t{16} << 20;
constexpr int kMostShardBits = 4;
constexpr double kForIndexes = 0.5;  // of the cache, before blocks of records take their place
// Bytes, of a partition of an index or filter. A filter's ends when it has exactly as many entries as fit; a name adds
// two at a time, so it may miss that, and ends with the index's then, some ten times as large. Here that is seldom, and
// small enough for a cold look-up.
constexpr uint64_t kPartition = 1910;
// A table is rewritten then: those of an earlier version, which have one filter and one index, and what holds
// deletions.
constexpr std::chrono::seconds kOldestTable = std::chrono::hours(30 * 24);

int ShardBits(uint64_t bytes) {
  const uint64_t shards = std::max<uint64_t>(bytes / kLeastShard, 1);
  return std::min(kMostShardBits, static_cast<int>(std::bit_width(shards)) - 1);
}

// What filters know besides whole keys: see ScanPrefix in keys.h.
class RecordPrefix final : public rocksdb::SliceTransform {
 public:
  const char* Name() const override { return "termfs.ScanPrefix.1"; }
  rocksdb::Slice Transform(const rocksdb::Slice& key) const override { return {key.data(), Length(key)}; }
  bool InDomain(const rocksdb::Slice& key) const override { return Length(key) != 0; }

 private:
  static size_t Length(const rocksdb::Slice& key) { return ScanPrefix({key.data(), key.size()}); }
};

// Look-ups read the partitions that they need, not the whole filter and index of a table. What says where those are is
// kept as long as the table is open.
rocksdb::BlockBasedTableOptions TableOptions(const EngineMemory& memory) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = memory.cache();
  table.cache_index_and_filter_blocks = true;  // else they would be memory beside what is set
  table.cache_index_and_filter_blocks_with_high_priority = true;
  table.index_type = rocksdb::BlockBasedTableOptions::kTwoLevelIndexSearch;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10, false));
  table.whole_key_filtering = true;
  table.partition_filters = true;
  table.metadata_block_size = kPartition;
  table.pin_top_level_index_and_filter = true;
  table.optimize_filters_for_memory = true;
  table.data_block_index_type = rocksdb::BlockBasedTableOptions::kDataBlockBinaryAndHash;
  return table;
}

}  // namespace

EngineMemory::EngineMemory(uint64_t bytes)
    : cache_(rocksdb::NewLRUCache(bytes, ShardBits(bytes), /*strict_capacity_limit=*/false, kForIndexes,
                                  std::make_shared<BlockMemory>())),
      write_buffers_(std::make_shared<rocksdb::WriteBufferManager>(bytes / 2, cache_)) {}

void EngineMemory::Resize(uint64_t bytes) {
  cache_->SetCapacity(bytes);
  write_buffers_->SetBufferSize(bytes / 2);
}

uint64_t EngineMemory::WriteBufferBytes(uint64_t memory_bytes, uint64_t wal_bytes) {
  return std::min(wal_bytes / 2, memory_bytes / kBufferShare);
}

rocksdb::Options EngineOptions(const RocksDbOptions& options, const EngineMemory& memory) {
  rocksdb::Options engine;
  engine.create_if_missing = options.create_if_missing;
  engine.env = EnvOfTables();
  engine.table_factory.reset(rocksdb::NewBlockBasedTableFactory(TableOptions(memory)));
  engine.prefix_extractor = std::make_shared<RecordPrefix>();
  engine.write_buffer_manager = memory.write_buffers();
  engine.write_buffer_size = EngineMemory::WriteBufferBytes(options.memory_bytes, options.wal_bytes);
  engine.max_write_buffer_number = kWriteBuffers;
  // Else a TransactionDB keeps as much again that is in tables already, for transactions that take a snapshot.
  engine.max_write_buffer_size_to_maintain = 1;
  engine.max_total_wal_size = options.wal_bytes;
  engine.recycle_log_file_num = 0;  // recycled logs cannot be replayed up to a torn tail
  engine.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  engine.max_background_jobs = 2;
  // All tables are open from the start. One that a look-up has to open reads all of its filter and index.
  engine.max_open_files = -1;
  engine.periodic_compaction_seconds = kOldestTable.count();
  engine.compression = rocksdb::kLZ4Compression;  // a block is uncompressed for each look-up that misses the cache
  engine.bytes_per_sync = size_t{1} << 20;
  engine.keep_log_file_num = 2;
  engine.max_log_file_size = size_t{4} << 20;
  engine.stats_dump_period_sec = 0;
  engine.stats_persist_period_sec = 0;
  engine.statistics = rocksdb::CreateDBStatistics();
  engine.statistics->set_stats_level(rocksdb::StatsLevel::kExceptHistogramOrTimers);
  return engine;
}

void NarrowScan(std::string_view begin, std::string_view end, bool ascending, rocksdb::ReadOptions& options) {
  const size_t length = ScanPrefix(begin);
  // Behind all that begins so; a prefix ends with a number that is never the greatest.
  std::string behind(begin.substr(0, length));
  for (size_t i = length; i > 0 && ++behind[i - 1] == 0; --i) {
  }
  options.total_order_seek = length == 0 || !ascending || end > behind;
}

std::vector<MetricValue> EngineMetrics(rocksdb::DB& db, const EngineMemory& memory) {
  const std::shared_ptr<rocksdb::Statistics> statistics = db.GetDBOptions().statistics;
  const auto count = [&](uint32_t ticker) { return statistics->getTickerCount(ticker); };
  const auto property = [&](const std::string& name) {
    uint64_t value = 0;
    return db.GetIntProperty(name, &value) ? value : 0;
  };
  return {
      {"metadata_memory_bytes", memory.cache()->GetCapacity()},
      {"metadata_memory_used_bytes", memory.cache()->GetUsage()},
      {"metadata_memtable_bytes", property(rocksdb::DB::Properties::kSizeAllMemTables)},
      {"metadata_table_bytes", property(rocksdb::DB::Properties::kTotalSstFilesSize)},
      {"metadata_cache_hits_total", count(rocksdb::BLOCK_CACHE_HIT)},
      {"metadata_cache_misses_total", count(rocksdb::BLOCK_CACHE_MISS)},
      {"metadata_read_bytes_total", count(rocksdb::LAST_LEVEL_READ_BYTES) + count(rocksdb::NON_LAST_LEVEL_READ_BYTES)},
      {"metadata_compactions", property(rocksdb::DB::Properties::kNumRunningCompactions) +
                                   property(rocksdb::DB::Properties::kCompactionPending)},
      {"metadata_compaction_read_bytes_total", count(rocksdb::COMPACT_READ_BYTES)},
      {"metadata_compaction_written_bytes_total", count(rocksdb::COMPACT_WRITE_BYTES)},
  };
}

}  // namespace termfs::metadata
