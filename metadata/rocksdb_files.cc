// SPDX-License-Identifier: Apache-2.0
#include "metadata/rocksdb_files.h"

#include <fcntl.h>
#include <rocksdb/file_system.h>
#include <sys/uio.h>

#include <memory>
#include <string>

#include "base/unique_fd.h"

namespace termfs::metadata {

thread_local bool WithoutWaiting::active_ = false;

namespace {

using rocksdb::IOStatus;

IOStatus WouldWait() { return IOStatus::Busy("not in memory"); }

class TableFile final : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  // `fd`: of the same file; none: nothing is read without waiting.
  TableFile(std::unique_ptr<rocksdb::FSRandomAccessFile>&& file, UniqueFd fd)
      : FSRandomAccessFileOwnerWrapper(std::move(file)), fd_(std::move(fd)) {}

  IOStatus Read(uint64_t offset, size_t n, const rocksdb::IOOptions& options, rocksdb::Slice* result, char* scratch,
                rocksdb::IODebugContext* debug) const override {
    if (!WithoutWaiting::active()) {
      return FSRandomAccessFileOwnerWrapper::Read(offset, n, options, result, scratch, debug);
    }
    const iovec into{.iov_base = scratch, .iov_len = n};
    const ssize_t got = fd_.valid() ? preadv2(fd_.get(), &into, 1, static_cast<off_t>(offset), RWF_NOWAIT) : -1;
    // Fewer at the end of the file, too, where nothing is read. What fails is read again by a thread that may wait.
    if (got != static_cast<ssize_t>(n)) {
      return WouldWait();
    }
    *result = rocksdb::Slice(scratch, n);
    return IOStatus::OK();
  }

 private:
  const UniqueFd fd_;
};

class TableFiles final : public rocksdb::FileSystemWrapper {
 public:
  explicit TableFiles(const std::shared_ptr<rocksdb::FileSystem>& below) : FileSystemWrapper(below) {}
  const char* Name() const override { return "termfs.TableFiles"; }

  IOStatus NewRandomAccessFile(const std::string& path, const rocksdb::FileOptions& options,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                               rocksdb::IODebugContext* debug) override {
    if (WithoutWaiting::active()) {
      return WouldWait();
    }
    std::unique_ptr<rocksdb::FSRandomAccessFile> opened;
    IOStatus status = target()->NewRandomAccessFile(path, options, &opened, debug);
    if (status.ok()) {
      UniqueFd fd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
      *file = std::make_unique<TableFile>(std::move(opened), std::move(fd));
    }
    return status;
  }
};

}  // namespace

rocksdb::Env* EnvOfTables() {
  static const std::unique_ptr<rocksdb::Env> env = MakeEnvOfTables(rocksdb::FileSystem::Default());
  return env.get();
}

std::unique_ptr<rocksdb::Env> MakeEnvOfTables(const std::shared_ptr<rocksdb::FileSystem>& below) {
  return rocksdb::NewCompositeEnv(std::make_shared<TableFiles>(below));
}

}  // namespace termfs::metadata
