// SPDX-License-Identifier: Apache-2.0
//
// The store on a disk that is full, or fails, for a while: errors are returned, what was committed stays, and
// everything goes on when the disk works again.
#include <rocksdb/file_system.h>

#include <atomic>

#include "tests/unit/eventually.h"
#include "tests/unit/metadata/test_volume.h"

namespace termfs::metadata {
namespace {

using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

enum class Disk : int { kWorks, kFull, kFails };

class FailingFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  FailingFile(std::unique_ptr<rocksdb::FSWritableFile>&& file, const std::atomic<Disk>& disk)
      : FSWritableFileOwnerWrapper(std::move(file)), disk_(disk) {}
  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    const IOStatus failed = Failure();
    return failed.ok() ? target()->Append(data, options, debug) : failed;
  }
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options,
                            IODebugContext* debug) override {
    const IOStatus failed = Failure();
    return failed.ok() ? target()->PositionedAppend(data, offset, options, debug) : failed;
  }
  IOStatus Sync(const IOOptions& options, IODebugContext* debug) override {
    return disk_.load() == Disk::kFails ? Failure() : target()->Sync(options, debug);
  }

 private:
  IOStatus Failure() const {
    switch (disk_.load()) {
      case Disk::kWorks:
        return IOStatus::OK();
      case Disk::kFull:
        return IOStatus::NoSpace("While appending", "No space left on device");
      case Disk::kFails:
        return IOStatus::IOError("While appending", "Input/output error");
    }
    return IOStatus::OK();
  }
  const std::atomic<Disk>& disk_;
};

class FailingFiles final : public rocksdb::FileSystemWrapper {
 public:
  explicit FailingFiles(const std::atomic<Disk>& disk)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), disk_(disk) {}
  const char* Name() const override { return "failing"; }
  IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                           std::unique_ptr<rocksdb::FSWritableFile>* result, IODebugContext* debug) override {
    const bool fails = disk_.load() == Disk::kFails;
    const IOStatus made = fails ? IOStatus::IOError("While opening " + name, "Input/output error")
                                : target()->NewWritableFile(name, options, result, debug);
    if (made.ok()) {
      *result = std::make_unique<FailingFile>(std::move(*result), disk_);
    }
    return made;
  }

 private:
  const std::atomic<Disk>& disk_;
};

class FailingDiskTest : public ::testing::TestWithParam<Disk> {
 protected:
  FailingDiskTest() { Open(); }
  ~FailingDiskTest() override { store_.reset(); }

  void Open() {
    store_.reset();
    RocksDbOptions options;
    options.create_if_missing = true;
    options.files = env_.get();
    auto opened = OpenRocksDb(directory_.path(), options);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    store_ = std::move(opened).value();
  }
  Status Put(int number) {
    return Retry(*store_, [&](Transaction& t) { return t.Put("key" + std::to_string(number), std::string(100, 'x')); });
  }
  bool Has(int number) {
    const auto value = store_->Snapshot()->Get("key" + std::to_string(number));
    EXPECT_TRUE(value.ok()) << value.status().ToString();
    return value.ok() && value->has_value();
  }
  Status PutSoon(int number) {  // the engine is resumed once a second
    Status status;
    Eventually([&] { return (status = Put(number)).ok(); });
    return status;
  }

  TemporaryDirectory directory_;
  std::atomic<Disk> disk_{Disk::kWorks};
  const std::unique_ptr<rocksdb::Env> env_ = rocksdb::NewCompositeEnv(std::make_shared<FailingFiles>(disk_));
  std::unique_ptr<KeyValueStore> store_;
};

TEST_P(FailingDiskTest, Commit_FailsReadsGoOnAndEverythingGoesOnAfterwards) {
  ASSERT_TRUE(Put(1).ok());
  for (int round = 0; round < 2; ++round) {
    disk_ = GetParam();
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(Put(100 + i).code(), GetParam() == Disk::kFull ? ENOSPC : EIO);
      EXPECT_FALSE(store_->SyncWal().ok());
      EXPECT_TRUE(Has(1)) << "reading goes on";
    }
    EXPECT_FALSE(store_->Health().ok());
    disk_ = Disk::kWorks;
    const Status again = PutSoon(2 + round);
    ASSERT_TRUE(again.ok()) << again.ToString();
    EXPECT_TRUE(store_->SyncWal().ok());
    EXPECT_TRUE(store_->Health().ok());
  }
  Open();
  EXPECT_TRUE(Has(1) && Has(2) && Has(3)) << "what was committed";
}

TEST_P(FailingDiskTest, Close_WhileTheDiskFailsDoesNotWaitForIt) {
  ASSERT_TRUE(Put(1).ok());
  disk_ = GetParam();
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(Put(100 + i).ok());
  }
  store_.reset();
  disk_ = Disk::kWorks;
  Open();
  EXPECT_TRUE(Has(1));
}

INSTANTIATE_TEST_SUITE_P(Disks, FailingDiskTest, ::testing::Values(Disk::kFull, Disk::kFails),
                         [](const auto& info) { return info.param == Disk::kFull ? "Full" : "Fails"; });

}  // namespace
}  // namespace termfs::metadata
