// SPDX-License-Identifier: Apache-2.0
#include "metadata/engine_events.h"

#include <cstdarg>
#include <utility>

#include "base/failure_log.h"

namespace termfs::metadata {

namespace {

const char* WorkOf(rocksdb::BackgroundErrorReason reason) {
  switch (reason) {
    case rocksdb::BackgroundErrorReason::kFlush:
    case rocksdb::BackgroundErrorReason::kFlushNoWAL:
    case rocksdb::BackgroundErrorReason::kMemTable:
      return "writing a table";
    case rocksdb::BackgroundErrorReason::kCompaction:
      return "compacting tables";
    case rocksdb::BackgroundErrorReason::kManifestWrite:
    case rocksdb::BackgroundErrorReason::kManifestWriteNoWAL:
      return "writing the list of tables";
    case rocksdb::BackgroundErrorReason::kWriteCallback:
      return "writing the log";
  }
  return "background work";
}

class EngineEvents final : public rocksdb::EventListener {
 public:
  void OnBackgroundError(rocksdb::BackgroundErrorReason reason, rocksdb::Status* error) override {
    const char* const work = WorkOf(reason);
    failures_.Report(work, [&] { return fmt::format("metadata store: {} failed: {}", work, error->ToString()); });
  }
  void OnErrorRecoveryCompleted(rocksdb::Status error) override {
    LOG_INFO("metadata store: recovered from: {}", error.ToString());
  }

 private:
  FailureLog failures_;
};

class EngineLog final : public rocksdb::Logger {
 public:
  EngineLog(std::shared_ptr<rocksdb::Logger> log, const DiskRoom& room)
      : Logger(log != nullptr ? log->GetInfoLogLevel() : rocksdb::FATAL_LEVEL), log_(std::move(log)), room_(room) {}

  using rocksdb::Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    if (log_ != nullptr && room_.is_plentiful()) {
      log_->Logv(format, arguments);
    }
  }
  void Flush() override {
    if (log_ != nullptr) {
      log_->Flush();
    }
  }
  size_t GetLogFileSize() const override { return log_ != nullptr ? log_->GetLogFileSize() : 0; }

 protected:
  rocksdb::Status CloseImpl() override { return log_ != nullptr ? log_->Close() : rocksdb::Status::OK(); }

 private:
  const std::shared_ptr<rocksdb::Logger> log_;
  const DiskRoom& room_;
};

}  // namespace

std::shared_ptr<rocksdb::EventListener> MakeEngineEvents() { return std::make_shared<EngineEvents>(); }

std::shared_ptr<rocksdb::Logger> MakeEngineLog(std::shared_ptr<rocksdb::Logger> log, const DiskRoom& room) {
  return std::make_shared<EngineLog>(std::move(log), room);
}

}  // namespace termfs::metadata
