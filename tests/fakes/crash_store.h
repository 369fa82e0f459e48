// SPDX-License-Identifier: Apache-2.0
//
// CrashStore: a RocksDB store with crash points around what it writes (store.commit, store.sync before;
// store.committed, store.synced after), which also loses power: it notes in memory that processes share how far the
// logs are synced, and LosePower cuts them off somewhere behind that, as a disk does that had not yet written the rest.
//
// Thread-safety: CrashStore as the seam; LosePower when no process has the store open.
// Ownership:     borrows the points and the note.
#pragma once

#include <array>
#include <charconv>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "base/random.h"
#include "metadata/key_value_store.h"
#include "tests/fakes/crash_points.h"

namespace termfs::metadata {

// Of each log file how many bytes a loss of power leaves.
struct SyncedLogs {
  struct Log {
    uint64_t number = 0;  // 0: none
    uint64_t bytes = 0;
  };
  std::array<Log, 64> logs{};

  void Note(uint64_t number, uint64_t bytes) {
    for (Log& log : logs) {
      if (log.number == number || log.number == 0) {
        log = {number, std::max(log.bytes, bytes)};
        return;
      }
    }
    logs[number % logs.size()] = {number, bytes};  // older ones are long gone
  }
  uint64_t Of(uint64_t number) const {
    for (const Log& log : logs) {
      if (log.number == number) {
        return log.bytes;
      }
    }
    return 0;
  }
};

// Number and length of every log file in the store's folder.
inline std::map<uint64_t, uint64_t> LogFiles(const std::string& folder) {
  std::map<uint64_t, uint64_t> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    uint64_t number = 0;
    if (name.ends_with(".log") && std::from_chars(name.data(), name.data() + name.size(), number).ec == std::errc()) {
      std::error_code gone;
      files[number] = entry.file_size(gone);
    }
  }
  return files;
}

inline void LosePower(const std::string& folder, const SyncedLogs& synced, Random& random) {
  for (const auto& [number, bytes] : LogFiles(folder)) {
    const uint64_t kept = std::min(bytes, synced.Of(number));
    std::array<char, 32> name{};
    std::snprintf(name.data(), name.size(), "/%06lu.log", static_cast<unsigned long>(number));
    std::filesystem::resize_file(folder + name.data(), kept + random.Below(bytes - kept + 1));
  }
}

class CrashStore final : public KeyValueStore {
 public:
  CrashStore(std::unique_ptr<KeyValueStore> store, std::string folder, CrashPoints& points, SyncedLogs& synced)
      : store_(std::move(store)), folder_(std::move(folder)), points_(points), synced_(synced) {
    NoteSynced(LogFiles(folder_));  // opening it has written what older logs held
  }
  std::unique_ptr<Transaction> Begin() override { return std::make_unique<CrashTransaction>(store_->Begin(), points_); }
  std::unique_ptr<Reader> Snapshot() override { return store_->Snapshot(); }
  Status SyncWal() override {
    points_.Pass("store.sync");
    const std::map<uint64_t, uint64_t> before = LogFiles(folder_);
    Status status = store_->SyncWal();
    if (status.ok()) {
      NoteSynced(before);
    }
    points_.Pass("store.synced");
    return status;
  }

 private:
  class CrashTransaction final : public Transaction {
   public:
    CrashTransaction(std::unique_ptr<Transaction> transaction, CrashPoints& points)
        : transaction_(std::move(transaction)), points_(points) {}
    Result<std::optional<std::string>> Get(std::string_view key) override { return transaction_->Get(key); }
    Result<std::optional<std::string>> GetForUpdate(std::string_view key) override {
      return transaction_->GetForUpdate(key);
    }
    Result<std::vector<KeyValue>> Scan(std::string_view begin, std::string_view end, size_t limit,
                                       ScanOrder order) override {
      return transaction_->Scan(begin, end, limit, order);
    }
    Status Put(std::string_view key, std::string_view value) override { return transaction_->Put(key, value); }
    Status Delete(std::string_view key) override { return transaction_->Delete(key); }
    Status Commit() override {
      points_.Pass("store.commit");
      Status status = transaction_->Commit();
      points_.Pass("store.committed");
      return status;
    }

   private:
    const std::unique_ptr<Transaction> transaction_;
    CrashPoints& points_;
  };

  void NoteSynced(const std::map<uint64_t, uint64_t>& logs) {
    MutexLock lock(mutex_);
    for (const auto& [number, bytes] : logs) {
      synced_.Note(number, bytes);
    }
  }

  const std::unique_ptr<KeyValueStore> store_;
  const std::string folder_;
  CrashPoints& points_;
  Mutex mutex_;
  SyncedLogs& synced_;
};

}  // namespace termfs::metadata
