// SPDX-License-Identifier: Apache-2.0
//
// A carrier's reads, over a volume in memory whose reads are held until a test lets them go.
#include "mount/front_end_reads.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include "tests/unit/fs/memory_volume.h"

namespace termfs::mount {
namespace {

constexpr size_t kPage = 4096;

class FrontEndReadsTest : public testing::Test {
 protected:
  FrontEndReadsTest() {
    EXPECT_TRUE(mount_.Write(file_, 0, std::string(kPage, 'a') + std::string(kPage, 'b')).ok());
    EXPECT_EQ(mount_.Read(file_, 0, 1), "a");  // brings the map
    volume_.tlib().HoldReads();
    auto made = FrontEndReads::Create(*mount_.fs, notifier_, latency_, carried_);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    reads_ = std::move(*made);
  }
  ~FrontEndReadsTest() override {
    volume_.tlib().AnswerReads();
    reads_.reset();
    mount_.Close(file_);
  }
  // What Begin says: the bytes' first, "under way", or the error.
  std::string Begin(uint64_t offset, size_t place, bool caches = false) {
    const auto begun =
        reads_->Begin({.what = {.handle = reinterpret_cast<uint64_t>(file_), .offset = offset, .size = kPage},
                       .caches = caches,
                       .received = std::chrono::steady_clock::now()},
                      place);
    return !begun.ok()          ? "errno " + std::to_string(begun.status().code())
           : begun->has_value() ? std::string(1, static_cast<char>((**begun)[0]))
                                : "under way";
  }

  fs::MemoryVolume volume_{uint64_t{16} << 20};
  fs::SilentCache cache_;
  fs::Mount mount_{volume_, &cache_};
  fs::client::OpenFile* const file_ = mount_.Create("f");
  KernelCacheNotifier notifier_;  // of no kernel
  Histogram latency_;
  Counter carried_;
  std::unique_ptr<FuseReads> reads_;
};

TEST_F(FrontEndReadsTest, EachEndsAtItsPlaceWithItsBytes) {
  ASSERT_EQ(Begin(kPage, 3), "under way");
  ASSERT_EQ(Begin(0, 31), "under way");
  std::vector<FuseReads::Done> done;
  reads_->Poll(done);
  EXPECT_TRUE(done.empty());
  EXPECT_EQ(carried_.value(), 0u);
  volume_.tlib().AnswerReads();
  reads_->Poll(done);
  ASSERT_EQ(done.size(), 2u);
  for (const FuseReads::Done& read : done) {
    ASSERT_TRUE(read.data.ok());
    ASSERT_EQ(read.data->size(), kPage);
    EXPECT_EQ(static_cast<char>((*read.data)[kPage - 1]), read.place == 3 ? 'b' : 'a');
  }
  EXPECT_EQ(carried_.value(), 2u);
  EXPECT_EQ(Begin(0, 3), "a") << "at once, now";
  EXPECT_EQ(carried_.value(), 3u);
}

TEST_F(FrontEndReadsTest, WithoutAMap_AThreadOfItsOwnShouldRead) {
  fs::Mount other(volume_);
  fs::client::OpenFile* const written = other.Open("f", O_RDWR | O_TRUNC);
  EXPECT_EQ(Begin(0, 0), "errno 11");
  EXPECT_EQ(carried_.value(), 0u);
  other.Close(written);
}

TEST_F(FrontEndReadsTest, Dropped_NothingComes) {
  ASSERT_EQ(Begin(0, 0), "under way");
  reads_->Drop();
  volume_.tlib().AnswerReads();
  std::vector<FuseReads::Done> done;
  reads_->Poll(done);
  EXPECT_TRUE(done.empty());
}

// Where the server has to hear of it first.
TEST_F(FrontEndReadsTest, WhatTheKernelKeeps_OnlyOnceTheServerKnows) {
  EXPECT_EQ(Begin(0, 0, /*caches=*/true), "errno 11");
  ASSERT_TRUE(mount_.CachePages(file_).ok());
  EXPECT_EQ(Begin(0, 0, /*caches=*/true), "under way");
}

}  // namespace
}  // namespace termfs::mount
