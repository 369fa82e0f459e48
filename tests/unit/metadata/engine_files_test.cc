// SPDX-License-Identifier: Apache-2.0
#include "metadata/engine_files.h"

#include <rocksdb/file_system.h>

#include <map>

#include "tests/unit/metadata/test_volume.h"

namespace termfs::metadata {
namespace {

using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kReserve = uint64_t{1} << 20;  // bytes

// A disk with room for what the reserve has given up. What does not fit is written in part, as the kernel does.
struct FakeDisk {
  DiskReserve& reserve;
  uint64_t free = 0;
  bool broken = false;
  std::map<std::string, std::string> files;

  uint64_t room() const { return free + (reserve.full() - reserve.held()); }
};

class FakeFile final : public rocksdb::FSWritableFile {
 public:
  FakeFile(FakeDisk& disk, std::string name) : disk_(disk), name_(std::move(name)) {}

  IOStatus Append(const Slice& data, const IOOptions&, IODebugContext*) override {
    IOStatus status = Put(cursor_, data);
    cursor_ = disk_.files[name_].size();  // of the descriptor: also behind what was written in part
    return status;
  }
  IOStatus Append(const Slice& data, const IOOptions& options, const rocksdb::DataVerificationInfo&,
                  IODebugContext* debug) override {
    return Append(data, options, debug);
  }
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions&, IODebugContext*) override {
    return Put(offset, data);
  }
  IOStatus Close(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Flush(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Sync(const IOOptions&, IODebugContext*) override {
    return disk_.broken ? IOStatus::IOError("While fdatasync: " + name_, "Input/output error") : IOStatus::OK();
  }
  uint64_t GetFileSize(const IOOptions&, IODebugContext*) override { return size_; }

 private:
  IOStatus Put(uint64_t at, const Slice& data) {
    std::string& bytes = disk_.files[name_];
    if (disk_.broken) {
      return IOStatus::IOError("While appending to file: " + name_, "Input/output error");
    }
    const uint64_t fits = std::min<uint64_t>(data.size(), disk_.room() - std::min(disk_.room(), at));
    bytes.resize(std::max<uint64_t>(bytes.size(), at + fits));
    bytes.replace(at, fits, data.data(), fits);
    if (fits < data.size()) {
      return IOStatus::NoSpace("While appending to file: " + name_, "No space left on device");
    }
    size_ = at + data.size();
    return IOStatus::OK();
  }

  FakeDisk& disk_;
  const std::string name_;
  uint64_t cursor_ = 0;
  uint64_t size_ = 0;
};

class FakeFiles final : public rocksdb::FileSystemWrapper {
 public:
  explicit FakeFiles(FakeDisk& disk) : FileSystemWrapper(rocksdb::FileSystem::Default()), disk_(disk) {}
  const char* Name() const override { return "fake"; }
  IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions&,
                           std::unique_ptr<rocksdb::FSWritableFile>* result, IODebugContext*) override {
    *result = std::make_unique<FakeFile>(disk_, name);
    return IOStatus::OK();
  }

 private:
  FakeDisk& disk_;
};

class EngineFilesTest : public ::testing::Test {
 protected:
  EngineFilesTest() { reserve_.Fill(); }

  std::unique_ptr<rocksdb::WritableFile> Make(const std::string& name) {
    std::unique_ptr<rocksdb::WritableFile> file;
    EXPECT_TRUE(env_->NewWritableFile(name, &file, rocksdb::EnvOptions()).ok());
    return file;
  }

  TemporaryDirectory directory_;
  DiskReserve reserve_{directory_.path() + "/reserve", kReserve};
  DiskRoom room_{directory_.path(), {}, reserve_};
  FakeDisk disk_{.reserve = reserve_, .files = {}};
  const std::unique_ptr<rocksdb::Env> base_ = rocksdb::NewCompositeEnv(std::make_shared<FakeFiles>(disk_));
  const std::unique_ptr<rocksdb::Env> env_ = MakeEngineEnv(*base_, reserve_, room_);
};

TEST_F(EngineFilesTest, Append_OnAFullDiskUsesTheReserveAndWritesEachByteOnce) {
  const auto file = Make("log");
  disk_.free = 1000;
  std::string wanted;
  for (int i = 0; i < 100; ++i) {
    const std::string record(4097, static_cast<char>('a' + i % 26));
    ASSERT_TRUE(file->Append(record).ok()) << i;
    wanted += record;
  }
  EXPECT_EQ(disk_.files["log"], wanted);
  EXPECT_LT(reserve_.held(), kReserve);
  EXPECT_GE(reserve_.held() + wanted.size(), kReserve / 2) << "in small portions";
}

TEST_F(EngineFilesTest, Append_FailsWhenTheReserveIsUsedUp) {
  testing::internal::CaptureStderr();
  const auto file = Make("/v/000007.log");
  EXPECT_TRUE(file->Append(std::string(kReserve / 2, 'x')).ok());
  EXPECT_TRUE(file->Append(std::string(kReserve, 'y')).IsNoSpace());
  EXPECT_EQ(reserve_.held(), 0u);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("write of 1048576 bytes at 524288 failed"), HasSubstr("/v/000007.log"),
                    HasSubstr("No space left on device")));
}

TEST_F(EngineFilesTest, Append_OfACompactionLeavesTheReserve) {
  std::unique_ptr<rocksdb::FSWritableFile> file;
  EXPECT_TRUE(env_->GetFileSystem()->NewWritableFile("table", rocksdb::FileOptions(), &file, nullptr).ok());
  file->SetIOPriority(rocksdb::Env::IO_LOW);
  const IOStatus status = file->Append("x", IOOptions(), nullptr);
  EXPECT_TRUE(status.IsIOError() && !status.IsNoSpace()) << "what the engine tries again: " << status.ToString();
  EXPECT_EQ(reserve_.held(), kReserve);
}

TEST_F(EngineFilesTest, Failures_AreLoggedOnceForEachKind) {
  testing::internal::CaptureStderr();
  const auto file = Make("/v/meta/000009.log");
  disk_.free = kReserve;
  disk_.broken = true;
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(file->Append("x").ok());
    EXPECT_FALSE(file->Sync().ok());
  }
  std::unique_ptr<rocksdb::SequentialFile> none;
  EXPECT_TRUE(env_->NewSequentialFile(directory_.path() + "/none", &none, rocksdb::EnvOptions()).IsIOError() ||
              none == nullptr);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2) << said;
  EXPECT_THAT(said, AllOf(HasSubstr("write of 1 bytes at 0 failed"), HasSubstr("sync of 0 bytes at 0 failed"),
                          HasSubstr("/v/meta/000009.log"), HasSubstr("Input/output error")));
  EXPECT_EQ(reserve_.held(), kReserve) << "it helps against full disks only";
}

}  // namespace
}  // namespace termfs::metadata
