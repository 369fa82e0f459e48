// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/aio_block_device.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "tests/unit/tlib/server_storage/task_fixture.h"
#include "tests/unit/tlib/server_storage/temp_folder.h"
#include "tlib/server/kernel_block_device.h"

namespace termfs::tlib::server {
namespace {

struct alignas(4096) PageBytes {
  std::array<std::byte, kPageSize> bytes;
};

class AioBlockDeviceTest : public testing::Test {
 protected:
  std::unique_ptr<BlockDevice> Make(uint64_t pages) {
    const Status made = MakeDeviceFile(path_, pages * kPageSize, nullptr);
    EXPECT_TRUE(made.ok()) << made.ToString();
    auto file = OpenDeviceFile(path_, OpenMode::kDirect);
    EXPECT_TRUE(file.ok()) << file.status().ToString();
    return std::make_unique<AioBlockDevice>(std::move(*file));
  }
  TempFolder folder_;
  const std::string path_ = folder_.path() + "/device";
  TaskRunner runner_{1};
};

TEST_F(AioBlockDeviceTest, Run_ManyAccessesAtOnce_EachGetsItsBytes) {
  auto device = Make(1024);
  runner_.Run([&] {
    std::vector<PageBytes> pages(256);
    std::vector<iovec> pieces(256);
    std::vector<BlockIo> ios(256);
    for (size_t i = 0; i < 256; i++) {
      std::memset(&pages[i], static_cast<int>(i), kPageSize);
      pieces[i] = {&pages[i], kPageSize};
      ios[i] = {.kind = BlockIo::Kind::kWrite, .offset = i * 3 * kPageSize, .pieces = {&pieces[i], 1}, .status = {}};
    }
    device->Run(ios);
    for (const BlockIo& io : ios) {
      EXPECT_TRUE(io.status.ok()) << io.status.ToString();
    }
    EXPECT_TRUE(device->Flush().ok());
    for (size_t i = 0; i < 256; i++) {
      std::memset(&pages[i], 0xee, kPageSize);
      ios[i].kind = BlockIo::Kind::kRead;
    }
    device->Run(ios);
    for (size_t i = 0; i < 256; i++) {
      EXPECT_EQ(pages[i].bytes[17], static_cast<std::byte>(i));
    }
  });
}

TEST_F(AioBlockDeviceTest, Run_SeveralPieces_ScattersOneAccess) {
  auto device = Make(16);
  runner_.Run([&] {
    std::vector<PageBytes> pages(4);
    std::vector<iovec> pieces(4);
    for (size_t i = 0; i < 4; i++) {
      std::memset(&pages[i], static_cast<int>(i + 1), kPageSize);
      pieces[i] = {&pages[i], kPageSize};
    }
    BlockIo io{.kind = BlockIo::Kind::kWrite, .offset = 2 * kPageSize, .pieces = pieces, .status = {}};
    device->Run({&io, 1});
    EXPECT_TRUE(io.status.ok());
    PageBytes back;
    EXPECT_TRUE(device->Read(4 * kPageSize, back.bytes).ok());
    EXPECT_EQ(back.bytes[0], std::byte{3});
  });
}

TEST_F(AioBlockDeviceTest, Read_BeyondTheEnd_IsEio) {
  auto device = Make(4);
  std::vector<PageBytes> pages(2);
  const std::span<std::byte> both(pages[0].bytes.data(), 2 * kPageSize);
  runner_.Run([&] { EXPECT_EQ(device->Read(3 * kPageSize, both).code(), EIO); });
  EXPECT_EQ(device->Read(3 * kPageSize, both).code(), EIO);  // outside of a task as well
}

TEST_F(AioBlockDeviceTest, Run_MoreThanTheContextHolds_AllEnd) {
  auto device = Make(512);
  std::vector<std::function<void()>> tasks;
  for (uint64_t i = 0; i < 300; i++) {  // the context holds 64
    tasks.push_back([&device, i] {
      PageBytes page;
      std::memset(&page, static_cast<int>(i), kPageSize);
      EXPECT_TRUE(device->Write(i * kPageSize, page.bytes).ok());
      std::memset(&page, 0, kPageSize);
      EXPECT_TRUE(device->Read(i * kPageSize, page.bytes).ok());
      EXPECT_EQ(page.bytes[kPageSize - 1], static_cast<std::byte>(i));
    });
  }
  runner_.RunAll(std::move(tasks));
}

TEST_F(AioBlockDeviceTest, MakeDeviceFile_ThatExists_IsRefused) {
  Make(4);
  EXPECT_EQ(MakeDeviceFile(path_, 4 * kPageSize, nullptr).code(), EEXIST);
}

TEST(MakeDeviceFile, LargerThanTheFileSystem_LeavesNothingBehind) {
  TempFolder folder;
  const std::string path = folder.path() + "/device";
  EXPECT_FALSE(MakeDeviceFile(path, uint64_t{1} << 50, nullptr).ok());
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

TEST(MakeDeviceFile, Progress_EndsAtTheSize) {
  TempFolder folder;
  uint64_t last = 0;
  ASSERT_TRUE(MakeDeviceFile(folder.path() + "/device", 3 << 20, [&](uint64_t done, uint64_t total) {
                EXPECT_EQ(total, 3U << 20);
                last = done;
              }).ok());
  EXPECT_EQ(last, 3U << 20);
}

TEST(FillHoles, ACopyWithHoles_HasItsBlocksAndBytesAfterwards) {
  TempFolder folder;
  const std::string path = folder.path() + "/device";
  ASSERT_TRUE(MakeDeviceFile(path, 64 * kPageSize, nullptr).ok());
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file << "first";
  }
  auto file = OpenDeviceFile(path, OpenMode::kBuffered);
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(fallocate(file->fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8 * kPageSize, 32 * kPageSize), 0);
  const auto blocks = [&] {
    struct stat found {};
    EXPECT_EQ(fstat(file->fd.get(), &found), 0);
    return static_cast<uint64_t>(found.st_blocks) * 512;
  };
  ASSERT_LT(blocks(), 64 * kPageSize);
  EXPECT_TRUE(FillHoles(*file).ok());
  EXPECT_GE(blocks(), 64 * kPageSize);
  std::array<char, 5> begin{};
  EXPECT_EQ(pread(file->fd.get(), begin.data(), begin.size(), 0), 5);
  EXPECT_EQ(std::string(begin.data(), begin.size()), "first");
}

TEST(KernelBlockDevice, MmapAndBuffered_SeeEachOthersBytes) {
  TempFolder folder;
  const std::string path = folder.path() + "/device";
  ASSERT_TRUE(MakeDeviceFile(path, 8 * kPageSize, nullptr).ok());
  auto mapped = MmapBlockDevice::Create(std::move(*OpenDeviceFile(path, OpenMode::kBuffered)));
  ASSERT_TRUE(mapped.ok());
  BufferedBlockDevice buffered(std::move(*OpenDeviceFile(path, OpenMode::kBuffered)));
  std::array<std::byte, 100> bytes;
  bytes.fill(std::byte{5});
  EXPECT_TRUE((*mapped)->Write(4090, bytes).ok());
  std::array<std::byte, 100> back{};
  EXPECT_TRUE(buffered.Read(4090, back).ok());
  EXPECT_EQ(bytes, back);
  EXPECT_TRUE((*mapped)->Flush().ok());
  EXPECT_TRUE(buffered.Flush().ok());
  EXPECT_EQ((*mapped)->Read(8 * kPageSize - 50, back).code(), EIO);
}

}  // namespace
}  // namespace termfs::tlib::server
