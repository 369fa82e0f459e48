// SPDX-License-Identifier: Apache-2.0
//
// Transactions take no snapshot: they lock the keys they name and read the latest committed data, so that a contended
// key is waited for instead of conflicting. Lock waits end by deadlock detection or by lock_timeout, as EAGAIN.
#include "metadata/rocksdb_store.h"

#include <rocksdb/perf_level.h>
#include <rocksdb/utilities/transaction.h>
#include <rocksdb/utilities/transaction_db.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>

#include "base/failure_log.h"
#include "base/log.h"
#include "base/mutex.h"
#include "metadata/disk_reserve.h"
#include "metadata/disk_room.h"
#include "metadata/engine_events.h"
#include "metadata/engine_files.h"
#include "metadata/rocksdb_engine.h"
#include "metadata/rocksdb_files.h"
#include "metadata/torn_logs.h"

namespace termfs::metadata {

namespace {

rocksdb::Slice ToSlice(std::string_view bytes) { return {bytes.data(), bytes.size()}; }

Status FromRocks(const rocksdb::Status& status, const char* what) {
  if (status.ok()) {
    return Status::Ok();
  }
  // Busy: deadlock; TimedOut: a lock; TryAgain, Expired: as the names say; Incomplete: not in memory.
  const bool conflict =
      status.IsBusy() || status.IsTimedOut() || status.IsTryAgain() || status.IsExpired() || status.IsIncomplete();
  const int code = conflict ? EAGAIN : status.IsNoSpace() ? ENOSPC : EIO;
  return Status::Error(code, std::string("metadata store: ") + what + ": " + status.ToString());
}

Result<std::optional<std::string>> ToValue(const rocksdb::Status& status, std::string&& value, const char* what) {
  if (status.IsNotFound()) {
    return std::optional<std::string>();
  }
  RETURN_IF_ERROR(FromRocks(status, what));
  return std::optional<std::string>(std::move(value));
}

// `iterator` was made with the bounds; they are checked here too, since a transaction's own writes may ignore them.
Result<std::vector<KeyValue>> Collect(rocksdb::Iterator& iterator, std::string_view begin, std::string_view end,
                                      size_t limit, ScanOrder order) {
  std::vector<KeyValue> result;
  const bool ascending = order == ScanOrder::kAscending;
  if (ascending) {
    iterator.Seek(ToSlice(begin));
  } else {
    iterator.SeekForPrev(ToSlice(end));
    if (iterator.Valid() && iterator.key() == ToSlice(end)) {
      iterator.Prev();
    }
  }
  while (result.size() < limit && iterator.Valid()) {
    const std::string_view key(iterator.key().data(), iterator.key().size());
    if (key < begin || key >= end) {
      break;
    }
    result.push_back({std::string(key), iterator.value().ToString()});
    if (ascending) {
      iterator.Next();
    } else {
      iterator.Prev();
    }
  }
  RETURN_IF_ERROR(FromRocks(iterator.status(), "scan"));
  return result;
}

// The engine counts each comparison of keys, for whoever asks the thread that it ran on; nobody does. Without that a
// transaction takes a fifth less.
void CountNothing() { rocksdb::SetPerfLevel(rocksdb::PerfLevel::kDisable); }

class RocksReader : public Reader {
 public:
  enum class Waiting { kMay, kMustNot };  // for a disk
  RocksReader(rocksdb::DB& db, Waiting waiting)
      : db_(db), snapshot_(db.GetSnapshot()), must_not_wait_(waiting == Waiting::kMustNot) {
    CountNothing();
    options_.snapshot = snapshot_;
  }
  ~RocksReader() override { db_.ReleaseSnapshot(snapshot_); }

  Result<std::optional<std::string>> Get(std::string_view key) override {
    const WithoutWaiting without(must_not_wait_);
    std::string value;
    const rocksdb::Status status = db_.Get(options_, ToSlice(key), &value);
    return ToValue(status, std::move(value), "get");
  }

  Result<std::vector<KeyValue>> Scan(std::string_view begin, std::string_view end, size_t limit,
                                     ScanOrder order) override {
    const WithoutWaiting without(must_not_wait_);
    const rocksdb::Slice lower = ToSlice(begin);
    const rocksdb::Slice upper = ToSlice(end);
    rocksdb::ReadOptions options = options_;
    options.iterate_lower_bound = &lower;
    options.iterate_upper_bound = &upper;
    NarrowScan(begin, end, order == ScanOrder::kAscending, options);
    const std::unique_ptr<rocksdb::Iterator> iterator(db_.NewIterator(options));
    return Collect(*iterator, begin, end, limit, order);
  }

 private:
  rocksdb::DB& db_;
  const rocksdb::Snapshot* const snapshot_;
  const bool must_not_wait_;
  rocksdb::ReadOptions options_;
};

// The engine stops writing when an append to its log, or a flush, failed; reads go on. What it says then must be
// heeded: to synchronise a log whose append failed is, for the engine, a programmer's error, which ends the process.
//
// Thread-safety: any thread.
class EngineHealth {
 public:
  explicit EngineHealth(rocksdb::DB& db) : db_(db) {}

  // Brings a stopped engine back, tried now and then: else the error that stopped it.
  Status BeforeWrite() EXCLUDES(mutex_) {
    if (!stopped_.load(std::memory_order_acquire)) {
      return Status::Ok();
    }
    {
      MutexLock lock(mutex_);
      if (!stopped_.load(std::memory_order_relaxed) || trying_ || std::chrono::steady_clock::now() < next_try_) {
        return why_;
      }
      trying_ = true;
    }
    // It writes what is in memory, on a disk that may be failing: the others fail meanwhile. A TransactionDB does not
    // pass it on.
    const rocksdb::Status resumed = db_.GetRootDB()->Resume();
    MutexLock lock(mutex_);
    trying_ = false;
    next_try_ = std::chrono::steady_clock::now() + kBetweenTries;
    if (resumed.IsBusy()) {  // the engine is at it by itself
      return why_;
    }
    why_ = FromRocks(resumed, "resume after an error");
    if (why_.ok()) {
      stopped_.store(false, std::memory_order_release);
      LOG_INFO("the metadata store writes again");
    }
    return why_;
  }

  Status AfterWrite(const rocksdb::Status& status, const char* what) EXCLUDES(mutex_) {
    Status result = FromRocks(status, what);
    if (result.code() == EIO || result.code() == ENOSPC) {
      MutexLock lock(mutex_);
      why_ = result;
      if (!stopped_.exchange(true, std::memory_order_release)) {  // pairs with BeforeWrite
        LOG_ERROR("{}: it is read only until it can write again", result.ToString());
      }
    }
    return result;
  }

 private:
  static constexpr std::chrono::seconds kBetweenTries{1};

  rocksdb::DB& db_;
  std::atomic<bool> stopped_{false};
  Mutex mutex_;
  Status why_ GUARDED_BY(mutex_);
  bool trying_ GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::time_point next_try_ GUARDED_BY(mutex_){};
};

class RocksTransaction : public Transaction {
 public:
  RocksTransaction(std::unique_ptr<rocksdb::Transaction> transaction, EngineHealth& health, const DiskRoom& room)
      : transaction_(std::move(transaction)), health_(health), room_(room) {}

  Result<std::optional<std::string>> Get(std::string_view key) override {
    std::string value;
    const rocksdb::Status status = transaction_->Get(read_options_, ToSlice(key), &value);
    return ToValue(status, std::move(value), "get");
  }

  Result<std::vector<KeyValue>> Scan(std::string_view begin, std::string_view end, size_t limit,
                                     ScanOrder order) override {
    const rocksdb::Slice lower = ToSlice(begin);
    const rocksdb::Slice upper = ToSlice(end);
    rocksdb::ReadOptions options = read_options_;
    options.iterate_lower_bound = &lower;
    options.iterate_upper_bound = &upper;
    NarrowScan(begin, end, order == ScanOrder::kAscending, options);
    const std::unique_ptr<rocksdb::Iterator> iterator(transaction_->GetIterator(options));
    return Collect(*iterator, begin, end, limit, order);
  }

  Result<std::optional<std::string>> GetForUpdate(std::string_view key) override {
    std::string value;
    const rocksdb::Status status = transaction_->GetForUpdate(read_options_, ToSlice(key), &value);
    return ToValue(status, std::move(value), "get for update");
  }

  Status Grows() override { return room_.CheckGrowth(); }
  void Frees() override { frees_ = true; }
  Status Put(std::string_view key, std::string_view value) override {
    writes_ = true;
    return FromRocks(transaction_->Put(ToSlice(key), ToSlice(value)), "put");
  }
  Status Delete(std::string_view key) override {
    writes_ = true;
    return FromRocks(transaction_->Delete(ToSlice(key)), "delete");
  }
  Status Commit() override {
    if (!writes_) {
      return FromRocks(transaction_->Commit(), "commit");
    }
    RETURN_IF_ERROR(frees_ ? room_.CheckRemoval() : room_.CheckChange());
    RETURN_IF_ERROR(health_.BeforeWrite());
    return health_.AfterWrite(transaction_->Commit(), "commit");
  }

 private:
  const std::unique_ptr<rocksdb::Transaction> transaction_;
  EngineHealth& health_;
  const DiskRoom& room_;
  bool writes_ = false;
  bool frees_ = false;
  const rocksdb::ReadOptions read_options_;
};

// The disk of a store, as the engine uses it.
struct Disk {
  Disk(const std::string& path, const RocksDbOptions& options)
      : reserve(path + "/reserve", options.reserve_bytes),
        room(path, {.growth = options.wal_bytes / 4 * 3, .changes = kRoomForChanges, .removals = kRoomForRemovals},
             reserve),
        env(MakeEngineEnv(options.files != nullptr ? *options.files : *rocksdb::Env::Default(), reserve, room)),
        tables(MakeEnvOfTables(env->GetFileSystem())) {}

  static constexpr uint64_t kRoomForChanges = uint64_t{8} << 20;
  static constexpr uint64_t kRoomForRemovals = uint64_t{2} << 20;

  DiskReserve reserve;
  DiskRoom room;
  const std::unique_ptr<rocksdb::Env> env;
  const std::unique_ptr<rocksdb::Env> tables;
};

class RocksStore : public KeyValueStore {
 public:
  RocksStore(std::unique_ptr<EngineMemory> memory, std::unique_ptr<rocksdb::TransactionDB> db,
             std::unique_ptr<Disk> disk, size_t wal_bytes)
      : disk_(std::move(disk)),
        memory_(std::move(memory)),
        wal_bytes_(wal_bytes),
        db_(std::move(db)),
        health_(*db_),
        room_(disk_->room) {
    transaction_options_.deadlock_detect = true;
  }

  std::unique_ptr<Transaction> Begin() override {
    CountNothing();
    return std::make_unique<RocksTransaction>(
        std::unique_ptr<rocksdb::Transaction>(db_->BeginTransaction(write_options_, transaction_options_)), health_,
        room_);
  }
  std::unique_ptr<Reader> Snapshot() override {
    return std::make_unique<RocksReader>(*db_, RocksReader::Waiting::kMay);
  }
  std::unique_ptr<Reader> MemorySnapshot() override {
    return std::make_unique<RocksReader>(*db_, RocksReader::Waiting::kMustNot);
  }
  Status SyncWal() override {
    FitToRoom();
    RETURN_IF_ERROR(health_.BeforeWrite());
    return health_.AfterWrite(db_->SyncWAL(), "sync the log");
  }
  Status Health() override {
    RETURN_IF_ERROR(health_.BeforeWrite());
    return room_.CheckGrowth();
  }

  bool IsRoomy() override { return room_.is_plentiful(); }
  void MakeRoom(uint64_t bytes) override { room_.MakeFree(bytes); }

  Status SetMemory(uint64_t bytes) override {
    const std::string buffer = std::to_string(EngineMemory::WriteBufferBytes(bytes, wal_bytes_));
    RETURN_IF_ERROR(FromRocks(db_->SetOptions({{"write_buffer_size", buffer}}), "set its memory"));
    memory_->Resize(bytes);
    return Status::Ok();
  }
  std::vector<MetricValue> Metrics() override { return EngineMetrics(*db_, *memory_); }

 private:
  // While room is short, what the log holds becomes a table early, which is much smaller, and the log goes.
  void FitToRoom() {
    constexpr uint64_t kShortLog = uint64_t{4} << 20;
    room_.FillReserve();
    uint64_t in_log = 0;
    if (room_.CheckGrowth().ok() || !db_->GetIntProperty("rocksdb.cur-size-all-mem-tables", &in_log) ||
        in_log < kShortLog) {
      return;
    }
    rocksdb::FlushOptions flush;
    flush.wait = false;
    if (const rocksdb::Status begun = db_->Flush(flush); !begun.ok()) {
      failures_.Report("metadata store: making room on the disk", FromRocks(begun, "flush"));
    }
  }

  const std::unique_ptr<Disk> disk_;  // outlives the engine
  const std::unique_ptr<EngineMemory> memory_;
  const uint64_t wal_bytes_;
  const std::unique_ptr<rocksdb::TransactionDB> db_;
  EngineHealth health_;
  const DiskRoom& room_;
  FailureLog failures_;
  const rocksdb::WriteOptions write_options_;
  rocksdb::TransactionOptions transaction_options_;
};

// What reads only, where a transaction is wanted.
class ReadOnlyTransaction : public Transaction {
 public:
  explicit ReadOnlyTransaction(rocksdb::DB& db) : reader_(db, RocksReader::Waiting::kMay) {}
  Result<std::optional<std::string>> Get(std::string_view key) override { return reader_.Get(key); }
  Result<std::vector<KeyValue>> Scan(std::string_view begin, std::string_view end, size_t limit,
                                     ScanOrder order) override {
    return reader_.Scan(begin, end, limit, order);
  }
  Result<std::optional<std::string>> GetForUpdate(std::string_view) override { return Refused(); }
  Status Put(std::string_view, std::string_view) override { return Refused(); }
  Status Delete(std::string_view) override { return Refused(); }
  Status Commit() override { return Status::Ok(); }

 private:
  static Status Refused() { return Status::Error(EROFS, "the metadata store is open to be read only"); }
  RocksReader reader_;
};

class ReadOnlyStore : public KeyValueStore {
 public:
  ReadOnlyStore(std::unique_ptr<EngineMemory> memory, std::unique_ptr<rocksdb::DB> db)
      : memory_(std::move(memory)), db_(std::move(db)) {}
  std::unique_ptr<Transaction> Begin() override { return std::make_unique<ReadOnlyTransaction>(*db_); }
  std::unique_ptr<Reader> Snapshot() override {
    return std::make_unique<RocksReader>(*db_, RocksReader::Waiting::kMay);
  }
  Status SyncWal() override { return Status::Ok(); }
  std::vector<MetricValue> Metrics() override { return EngineMetrics(*db_, *memory_); }

 private:
  const std::unique_ptr<EngineMemory> memory_;
  const std::unique_ptr<rocksdb::DB> db_;
};

// The engine's own log would be a file in its directory.
class NoLog : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

rocksdb::Options EngineOptionsOn(const Disk& disk, const EngineMemory& memory, const std::string& path,
                                 const RocksDbOptions& options) {
  rocksdb::Options engine = EngineOptions(options, memory);
  engine.env = disk.tables.get();
  engine.listeners.push_back(MakeEngineEvents());
  engine.max_bgerror_resume_count = 0;  // the store does that
  engine.info_log = MakeEngineLog(path + "/LOG", disk.room);
  return engine;
}

// A TransactionDB keeps every log, and reads it at each start, until a table is written that has something new in it.
// A deletion of the empty key, which no record has, is.
rocksdb::Status ForgetLogs(rocksdb::DB& db) {
  const rocksdb::Status written = db.Delete(rocksdb::WriteOptions(), rocksdb::Slice());
  rocksdb::FlushOptions at_once;  // else it may wait for compactions, which is a minute where many names were made
  at_once.allow_write_stall = true;
  return written.ok() ? db.Flush(at_once) : written;
}

// `status`: of opening the store.
Status FromOpening(const rocksdb::Status& status, const std::string& path) {
  const std::string text = "metadata store " + path + ": " + status.ToString();
  if (status.IsInvalidArgument() && text.find("does not exist") != std::string::npos) {
    return Status::Error(ENOENT, text);
  }
  if (status.IsCorruption()) {
    return Status::Error(EUCLEAN, text);
  }
  if (status.IsNoSpace()) {
    return Status::Error(ENOSPC, text);
  }
  if (status.IsIOError() && text.find("lock") != std::string::npos) {
    return Status::Error(EBUSY, text);
  }
  return Status::Error(EIO, text);
}

Result<std::unique_ptr<KeyValueStore>> OpenToRead(const std::string& path, const RocksDbOptions& options) {
  if (access((path + "/CURRENT").c_str(), F_OK) != 0) {
    return Status::Error(ENOENT, "metadata store " + path + ": there is none");
  }
  auto memory = std::make_unique<EngineMemory>(options.memory_bytes);
  rocksdb::Options engine = EngineOptions(options, *memory);
  engine.info_log = std::make_shared<NoLog>();
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::OpenForReadOnly(engine, path, &db);
  std::unique_ptr<rocksdb::DB> opened(db);
  if (!status.ok()) {
    return FromOpening(status, path);
  }
  return std::unique_ptr<KeyValueStore>(std::make_unique<ReadOnlyStore>(std::move(memory), std::move(opened)));
}

}  // namespace

Result<std::unique_ptr<KeyValueStore>> OpenRocksDb(const std::string& path, const RocksDbOptions& options) {
  if (options.read_only) {
    return OpenToRead(path, options);
  }
  rocksdb::TransactionDBOptions transactions;
  transactions.transaction_lock_timeout = options.lock_timeout.count();
  transactions.default_lock_timeout = options.lock_timeout.count();
  ASSIGN_OR_RETURN(const size_t logs,
                   CutTornLogs(path, options.cut_damaged_logs ? Damage::kSetAside : Damage::kRefuse));
  auto disk = std::make_unique<Disk>(path, options);
  RETURN_IF_ERROR(disk->room.CheckRemoval());  // the engine would not survive to find that out
  auto memory = std::make_unique<EngineMemory>(options.memory_bytes);
  rocksdb::TransactionDB* db = nullptr;
  rocksdb::Status status =
      rocksdb::TransactionDB::Open(EngineOptionsOn(*disk, *memory, path, options), transactions, path, &db);
  std::unique_ptr<rocksdb::TransactionDB> opened(db);
  if (status.ok() && logs > 0) {
    status = ForgetLogs(*db);
  }
  if (!status.ok()) {
    return FromOpening(status, path);
  }
  disk->room.FillReserve();
  return std::unique_ptr<KeyValueStore>(
      std::make_unique<RocksStore>(std::move(memory), std::move(opened), std::move(disk), options.wal_bytes));
}

}  // namespace termfs::metadata
