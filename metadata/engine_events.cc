// SPDX-License-Identifier: Apache-2.0
#include "metadata/engine_events.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <utility>

#include "base/clock.h"
#include "base/failure_log.h"
#include "base/mutex.h"
#include "base/unique_fd.h"

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
  // The store resumes the engine; by itself it may be at that for ever, and then it cannot be closed.
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status, bool* by_itself) override {
    *by_itself = false;
  }

 private:
  FailureLog failures_;
};

// The engine's own logger treats its file as the engine's others: after a write that failed, the next ends the process.
class EngineLog final : public rocksdb::Logger {
 public:
  EngineLog(std::string path, const DiskRoom& room) : path_(std::move(path)), room_(room) { Begin(); }

  using rocksdb::Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    std::array<char, 2048> text;
    const int length = std::vsnprintf(text.data(), text.size(), format, arguments);
    if (length <= 0 || !room_.is_plentiful()) {
      return;
    }
    const auto used = std::min<size_t>(static_cast<size_t>(length), text.size() - 1);
    const std::string line = fmt::format("{} {}\n", Clock::System().RealTime().count() / 1'000'000,  // ms
                                         std::string_view(text.data(), used));
    MutexLock lock(mutex_);
    if (size_ >= kMostBytes) {
      Begin();
    }
    // What cannot be written is missing; the engine's errors are in the server's log, too.
    const ssize_t written = fd_.valid() ? write(fd_.get(), line.data(), line.size()) : 0;
    size_ += written > 0 ? static_cast<uint64_t>(written) : 0;
  }

 protected:
  rocksdb::Status CloseImpl() override { return rocksdb::Status::OK(); }

 private:
  static constexpr uint64_t kMostBytes = uint64_t{4} << 20;

  // The file before is kept beside it.
  void Begin() {
    rename(path_.c_str(), (path_ + ".old").c_str());
    fd_ = UniqueFd(open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    size_ = 0;
  }

  const std::string path_;
  const DiskRoom& room_;
  Mutex mutex_;
  UniqueFd fd_;        // under mutex_
  uint64_t size_ = 0;  // under mutex_
};

}  // namespace

std::shared_ptr<rocksdb::EventListener> MakeEngineEvents() { return std::make_shared<EngineEvents>(); }

std::shared_ptr<rocksdb::Logger> MakeEngineLog(const std::string& path, const DiskRoom& room) {
  return std::make_shared<EngineLog>(path, room);
}

}  // namespace termfs::metadata
