// SPDX-License-Identifier: Apache-2.0
//
// Copies between files that lose their names meanwhile, or whose pages become another file's.
#include <fcntl.h>

#include <functional>
#include <future>

#include "tests/unit/eventually.h"
#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {

using client::OpenFile;

namespace {

constexpr uint64_t kCapacity = uint64_t{16} << 20;
constexpr uint64_t kBytes = uint64_t{1} << 20;

class RemovedCopies : public testing::Test {
 protected:
  RemovedCopies() { EXPECT_TRUE(a.Write(from, 0, std::string(kBytes, 's')).ok()); }

  // Copies all of it in one request; `meanwhile` happens when the server is about to read the source's bytes.
  Result<uint64_t> CopyWhile(const std::function<void()>& meanwhile) {
    volume.tlib().HoldServerReads(true);
    auto copied = std::async(std::launch::async,
                             [this] { return a.fs->Copy(*a.lane, {.from = from, .to = to, .length = kBytes}); });
    EXPECT_TRUE(Eventually([this] { return volume.tlib().held_server_reads() == 1; }));
    meanwhile();
    volume.tlib().HoldServerReads(false);
    return copied.get();
  }
  // All that is free becomes a file of b's, once so much is.
  void TakeSpace(uint64_t free_bytes) {
    EXPECT_TRUE(Eventually([&] { return volume.names().StatFs().free_pages << kPageBits >= free_bytes; }));
    OpenFile* const file = b.Create("others");
    for (uint64_t at = 0; b.Write(file, at, std::string(64 << 10, 'o')).ok(); at += 64 << 10) {
    }
    b.Close(file);
  }

  MemoryVolume volume{kCapacity};
  Mount a{volume};
  Mount b{volume};
  OpenFile* from = a.Create("from");
  OpenFile* to = a.Create("to");
};

}  // namespace

TEST_F(RemovedCopies, WhatIsOpenIsCopied_WithoutItsName) {
  const auto copied = CopyWhile([this] {
    EXPECT_TRUE(b.Remove("from").ok());
    EXPECT_TRUE(b.Remove("to").ok());
    TakeSpace(kCapacity - 4 * kBytes);  // some is kept for growth
  });
  ASSERT_TRUE(copied.ok()) << copied.status().ToString();
  EXPECT_EQ(*copied, kBytes);
  EXPECT_EQ(a.Read(to, 0, kBytes), std::string(kBytes, 's'));
  EXPECT_EQ(a.Read(from, 0, kBytes), std::string(kBytes, 's'));
  a.Close(from);
  a.Close(to);
  EXPECT_TRUE(b.Remove("others").ok());
  EXPECT_TRUE(Eventually([this] { return volume.names().StatFs().free_pages << kPageBits == kCapacity; }));
}

// Nobody waits for such a copy any more, but where it goes others can read.
TEST_F(RemovedCopies, OfASourceThatIsClosed_HasNoBytesOfOthers) {
  const auto lane = a.fs->OpenLane();
  ASSERT_TRUE(lane.ok());
  const auto copied = CopyWhile([&] {
    EXPECT_TRUE(b.Remove("from").ok());
    a.fs->Release(**lane, from);  // as when the caller has given the copy up
    TakeSpace(kCapacity - kBytes);
  });
  EXPECT_EQ(a.Read(to, 0, kBytes).find('o'), std::string::npos) << copied.status().ToString();
  a.Close(to);
}

TEST_F(RemovedCopies, OfASourceThatIsClosedAndThenRemoved_HasNoBytesOfOthers) {
  const auto lane = a.fs->OpenLane();
  ASSERT_TRUE(lane.ok());
  const auto copied = CopyWhile([&] {
    a.fs->Release(**lane, from);
    EXPECT_TRUE(b.Remove("from").ok());
    TakeSpace(kCapacity - kBytes);
  });
  EXPECT_EQ(a.Read(to, 0, kBytes).find('o'), std::string::npos) << copied.status().ToString();
  a.Close(to);
}

}  // namespace termfs::fs
