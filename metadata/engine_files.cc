// SPDX-License-Identifier: Apache-2.0
#include "metadata/engine_files.h"

#include <rocksdb/file_system.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/failure_log.h"

namespace termfs::metadata {

namespace {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

// What the files of one store share.
class Shared {
 public:
  Shared(DiskReserve& reserve, const DiskRoom& room) : reserve_(reserve), room_(room) {}

  // The text of `status` has the file and the error. What the engine asks only to find out is no failure. An error that
  // is said to pass makes the engine stop writing until it is resumed, others until it is opened again. Resumed it
  // writes all that is in its memory to new files, so what a failing disk has lost of the old ones is no loss.
  IOStatus Report(const char* what, uint64_t offset, uint64_t length, IOStatus status) {
    if (IsFailure(status)) {
      failures_.Report(what, [&] {
        return fmt::format("metadata store: {} of {} bytes at {} failed: {}", what, length, offset, status.ToString());
      });
      status.SetRetryable(true);
    }
    return status;
  }
  IOStatus Report(const char* what, IOStatus status) {
    if (IsFailure(status)) {
      failures_.Report(what, [&] { return fmt::format("metadata store: {} failed: {}", what, status.ToString()); });
      status.SetRetryable(true);
    }
    return status;
  }

  // Runs `access`, again with blocks of the reserve as long as it finds the disk full and there are some.
  template <typename Access>
  IOStatus WithReserve(uint64_t bytes, const Access& access) {
    IOStatus status = access();
    while (status.IsNoSpace() && reserve_.GiveUp(std::max(2 * bytes, kPortion))) {
      status = access();
    }
    return status;
  }
  bool is_plentiful() const { return room_.is_plentiful(); }

 private:
  static constexpr uint64_t kPortion = uint64_t{128} << 10;
  static bool IsFailure(const IOStatus& status) {
    return !status.ok() && !status.IsNotFound() && !status.IsPathNotFound() && !status.IsNotSupported();
  }

  DiskReserve& reserve_;
  const DiskRoom& room_;
  FailureLog failures_;
};

class SequentialFile final : public rocksdb::FSSequentialFileOwnerWrapper {
 public:
  SequentialFile(std::unique_ptr<rocksdb::FSSequentialFile>&& file, std::shared_ptr<Shared> shared)
      : FSSequentialFileOwnerWrapper(std::move(file)), shared_(std::move(shared)) {}

  IOStatus Read(size_t n, const IOOptions& options, Slice* result, char* scratch, IODebugContext* debug) override {
    IOStatus status = target()->Read(n, options, result, scratch, debug);
    if (status.ok()) {
      at_ += result->size();
    }
    return shared_->Report("read", at_, n, std::move(status));
  }

 private:
  const std::shared_ptr<Shared> shared_;
  uint64_t at_ = 0;
};

class RandomAccessFile final : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  RandomAccessFile(std::unique_ptr<rocksdb::FSRandomAccessFile>&& file, std::shared_ptr<Shared> shared)
      : FSRandomAccessFileOwnerWrapper(std::move(file)), shared_(std::move(shared)) {}

  IOStatus Read(uint64_t offset, size_t n, const IOOptions& options, Slice* result, char* scratch,
                IODebugContext* debug) const override {
    return shared_->Report("read", offset, n, target()->Read(offset, n, options, result, scratch, debug));
  }
  IOStatus MultiRead(rocksdb::FSReadRequest* requests, size_t count, const IOOptions& options,
                     IODebugContext* debug) override {
    IOStatus status = target()->MultiRead(requests, count, options, debug);
    for (size_t i = 0; i < count; ++i) {
      const rocksdb::FSReadRequest& request = requests[i];
      shared_->Report("read", request.offset, request.len, request.status).PermitUncheckedError();
    }
    return status;
  }

 private:
  const std::shared_ptr<Shared> shared_;
};

class WritableFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  WritableFile(std::unique_ptr<rocksdb::FSWritableFile>&& file, std::shared_ptr<Shared> shared)
      : FSWritableFileOwnerWrapper(std::move(file)), shared_(std::move(shared)) {}

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    const uint64_t at = target()->GetFileSize(options, debug);
    bool first = true;
    // What a full disk has taken of `data` lies behind the end that the file knows, and the next append would follow
    // it.
    const auto append = [&] {
      const bool plain = std::exchange(first, false) && !positioned_;
      positioned_ = !plain;
      return plain ? target()->Append(data, options, debug) : target()->PositionedAppend(data, at, options, debug);
    };
    IOStatus status = MayWait() ? WithoutRoom(append()) : shared_->WithReserve(data.size(), append);
    return shared_->Report("write", at, data.size(), std::move(status));
  }
  IOStatus Append(const Slice& data, const IOOptions& options, const rocksdb::DataVerificationInfo&,
                  IODebugContext* debug) override {
    return Append(data, options, debug);
  }
  IOStatus Flush(const IOOptions& options, IODebugContext* debug) override {
    return ReportSync(target()->Flush(options, debug));
  }
  IOStatus Sync(const IOOptions& options, IODebugContext* debug) override {
    return ReportSync(target()->Sync(options, debug));
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    return ReportSync(target()->Fsync(options, debug));
  }
  IOStatus RangeSync(uint64_t offset, uint64_t bytes, const IOOptions& options, IODebugContext* debug) override {
    return ReportSync(target()->RangeSync(offset, bytes, options, debug));
  }
  IOStatus Close(const IOOptions& options, IODebugContext* debug) override {
    return shared_->Report("close", target()->Close(options, debug));
  }
  // Blocks ahead of what is written would take what little there is.
  void PrepareWrite(size_t offset, size_t length, const IOOptions& options, IODebugContext* debug) override {
    if (shared_->is_plentiful()) {
      target()->PrepareWrite(offset, length, options, debug);
    }
  }

 private:
  // The engine takes a full disk in a compaction for its end, as its transactions might be in two phases.
  static IOStatus WithoutRoom(const IOStatus& status) {
    return status.IsNoSpace() ? IOStatus::IOError("a compaction waits for room on the disk", status.ToString())
                              : status;
  }
  bool MayWait() { return GetIOPriority() == rocksdb::Env::IO_LOW; }  // of a compaction that stalls no writer
  IOStatus ReportSync(IOStatus status) {
    const uint64_t size = status.ok() ? 0 : target()->GetFileSize(IOOptions(), nullptr);
    return shared_->Report("sync", 0, size, std::move(status));
  }

  const std::shared_ptr<Shared> shared_;
  bool positioned_ = false;  // where its own end is does not count any more
};

class Directory final : public rocksdb::FSDirectoryWrapper {
 public:
  Directory(std::unique_ptr<rocksdb::FSDirectory>&& directory, std::shared_ptr<Shared> shared)
      : FSDirectoryWrapper(std::move(directory)), shared_(std::move(shared)) {}

  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    return shared_->Report("sync of the directory", FSDirectoryWrapper::Fsync(options, debug));
  }
  IOStatus FsyncWithDirOptions(const IOOptions& options, IODebugContext* debug,
                               const rocksdb::DirFsyncOptions& how) override {
    return shared_->Report("sync of the directory", FSDirectoryWrapper::FsyncWithDirOptions(options, debug, how));
  }

 private:
  const std::shared_ptr<Shared> shared_;
};

class EngineFiles final : public rocksdb::FileSystemWrapper {
 public:
  EngineFiles(const std::shared_ptr<rocksdb::FileSystem>& base, DiskReserve& reserve, const DiskRoom& room)
      : FileSystemWrapper(base), shared_(std::make_shared<Shared>(reserve, room)) {}

  const char* Name() const override { return "termfs"; }

  IOStatus NewSequentialFile(const std::string& name, const FileOptions& options,
                             std::unique_ptr<rocksdb::FSSequentialFile>* result, IODebugContext* debug) override {
    return Wrap<SequentialFile>(result, target()->NewSequentialFile(name, options, result, debug));
  }
  IOStatus NewRandomAccessFile(const std::string& name, const FileOptions& options,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* result, IODebugContext* debug) override {
    return Wrap<RandomAccessFile>(result, target()->NewRandomAccessFile(name, options, result, debug));
  }
  IOStatus NewWritableFile(const std::string& name, const FileOptions& options,
                           std::unique_ptr<rocksdb::FSWritableFile>* result, IODebugContext* debug) override {
    return Wrap<WritableFile>(
        result, shared_->WithReserve(0, [&] { return target()->NewWritableFile(name, options, result, debug); }));
  }
  IOStatus ReopenWritableFile(const std::string& name, const FileOptions& options,
                              std::unique_ptr<rocksdb::FSWritableFile>* result, IODebugContext* debug) override {
    return Wrap<WritableFile>(result, target()->ReopenWritableFile(name, options, result, debug));
  }
  IOStatus ReuseWritableFile(const std::string& name, const std::string& old_name, const FileOptions& options,
                             std::unique_ptr<rocksdb::FSWritableFile>* result, IODebugContext* debug) override {
    return Wrap<WritableFile>(result, target()->ReuseWritableFile(name, old_name, options, result, debug));
  }
  IOStatus NewDirectory(const std::string& name, const IOOptions& options,
                        std::unique_ptr<rocksdb::FSDirectory>* result, IODebugContext* debug) override {
    return Wrap<Directory>(result, target()->NewDirectory(name, options, result, debug));
  }
  IOStatus RenameFile(const std::string& from, const std::string& to, const IOOptions& options,
                      IODebugContext* debug) override {
    return shared_->Report("rename",
                           shared_->WithReserve(0, [&] { return target()->RenameFile(from, to, options, debug); }));
  }
  IOStatus DeleteFile(const std::string& name, const IOOptions& options, IODebugContext* debug) override {
    return shared_->Report("delete", target()->DeleteFile(name, options, debug));
  }

 private:
  template <typename Wrapper, typename File>
  IOStatus Wrap(std::unique_ptr<File>* file, IOStatus opened) {
    if (opened.ok()) {
      *file = std::make_unique<Wrapper>(std::move(*file), shared_);
    }
    return shared_->Report("open", std::move(opened));
  }

  const std::shared_ptr<Shared> shared_;
};

}  // namespace

std::unique_ptr<rocksdb::Env> MakeEngineEnv(rocksdb::Env& base, DiskReserve& reserve, const DiskRoom& room) {
  return rocksdb::NewCompositeEnv(std::make_shared<EngineFiles>(base.GetFileSystem(), reserve, room));
}

}  // namespace termfs::metadata
