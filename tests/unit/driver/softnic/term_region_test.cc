// SPDX-License-Identifier: Apache-2.0
//
// SSD-extended regions: page table, pattern, bitmap, frames, and the kinds.
#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/driver/softnic/connection.h"

namespace termfs::driver {
namespace {

Pattern PatternOf(int seed) {
  Pattern pattern;
  for (size_t i = 0; i < pattern.line.size(); i++) {
    pattern.line[i] = static_cast<std::byte>(seed + i * 3);
  }
  return pattern;
}

class TermRegions : public AnyPath {};
INSTANTIATE_TEST_SUITE_P(Paths, TermRegions, EveryPath(), PathName);

struct TermFixture : Connection {
  explicit TermFixture(RegionKind kind = RegionKind::kTerm, std::function<void(PageIndex)> handler = {},
                       uint64_t pages = 64, uint64_t max_pages = 128) {
    TermRegionOptions options;
    options.kind = kind;
    options.pages = pages;
    options.max_pages = max_pages;
    options.pattern = PatternOf(1);
    options.fault_handler = std::move(handler);
    term = server.domain->RegisterTermRegion(options).value();
    EXPECT_TRUE(term->Commit(FrameIndex{0}, 16).ok());
  }
  void Fill(FrameIndex frame, int value) { memset(term->frame(frame), value, kPageSize); }
  WcStatus Read(uint64_t offset, uint32_t length) {
    memset(client.memory->data(), 0x77, 1 << 16);
    return client.Run(client.Request(Opcode::kRdmaRead, 0, length, term->rkey(), offset));
  }
  std::byte At(size_t i) { return client.memory->data()[i]; }
  // Whether what was read from `offset` on, at [from, to) of the buffer, is the pattern.
  bool IsPattern(const Pattern& pattern, uint64_t offset, size_t from, size_t to) {
    for (size_t i = from; i < to; i++) {
      if (At(i) != pattern.line[(offset + i) % 64]) {
        return false;
      }
    }
    return true;
  }
  std::unique_ptr<TermRegion> term;
};

TEST_P(TermRegions, Read_AbsentPageIsThePatternAlignedToThePage) {
  TermFixture f;
  ASSERT_EQ(f.Read(4096 + 13, 1000), WcStatus::kSuccess);
  EXPECT_TRUE(f.IsPattern(PatternOf(1), 4096 + 13, 0, 1000));
  EXPECT_EQ(f.At(1000), std::byte{0x77});
}

TEST_P(TermRegions, Read_AcrossPresentAndAbsentPages) {
  TermFixture f;
  f.Fill({3}, 0xaa);
  f.Fill({2}, 0xbb);
  f.term->Publish({1}, {3});
  f.term->Publish({3}, {2});
  ASSERT_EQ(f.Read(4096 + 100, 3 * 4096), WcStatus::kSuccess);
  EXPECT_EQ(f.At(0), std::byte{0xaa});
  EXPECT_EQ(f.At(4096 - 101), std::byte{0xaa});
  EXPECT_TRUE(f.IsPattern(PatternOf(1), 4096 + 100, 4096 - 100, 2 * 4096 - 100));
  EXPECT_EQ(f.At(2 * 4096 - 100), std::byte{0xbb});
  EXPECT_EQ(f.At(3 * 4096 - 101), std::byte{0xbb});
  EXPECT_TRUE(f.IsPattern(PatternOf(1), 4096 + 100, 3 * 4096 - 100, 3 * 4096));
}

TEST_P(TermRegions, Read_PageBeingWrittenIsThePattern) {
  TermFixture f;
  f.Fill({0}, 1);
  f.term->Publish({0}, {0});
  f.term->BeginWrite({0});
  ASSERT_EQ(f.Read(0, 64), WcStatus::kSuccess);
  EXPECT_TRUE(f.IsPattern(PatternOf(1), 0, 0, 64));
  f.Fill({0}, 2);
  f.term->Publish({0}, {0});
  ASSERT_EQ(f.Read(0, 64), WcStatus::kSuccess);
  EXPECT_EQ(f.At(0), std::byte{2});
}

TEST_P(TermRegions, Hide_MakesThePageAbsentAndClearsItsBit) {
  TermFixture f;
  f.term->Publish({33}, {0});
  EXPECT_EQ(f.term->bitmap()[0].load(), uint64_t{1} << 33);
  f.term->Hide({33});
  EXPECT_EQ(f.term->bitmap()[0].load(), 0u);
  ASSERT_EQ(f.Read(33 * 4096, 64), WcStatus::kSuccess);
  EXPECT_TRUE(f.IsPattern(PatternOf(1), 0, 0, 64));
}

TEST(SoftTermRegion, Bitmap_CanBeReadAndShared) {
  TermFixture f;
  f.term->Publish({5}, {0});
  ASSERT_EQ(f.client.Run(f.client.Request(Opcode::kRdmaRead, 0, 8, f.term->bitmap_rkey(), 0)), WcStatus::kSuccess);
  EXPECT_EQ(f.At(0), std::byte{1 << 5});
  const auto view = f.client.pair->SharedView(f.term->bitmap_rkey());
  ASSERT_TRUE(view.ok());
  f.term->Publish({6}, {1});
  EXPECT_EQ((*view)[0], std::byte{3 << 5});
}

TEST(SoftTermRegion, SharedView_OfARegionWithPageTableIsNotSupported) {
  TermFixture f;
  EXPECT_EQ(f.client.pair->SharedView(f.term->rkey()).status().code(), ENOTSUP);
}

TEST_P(TermRegions, SetPattern_ChangesWhatAbsentPagesReadAs) {
  TermFixture f;
  for (int seed = 1; seed < 50; seed++) {
    ASSERT_TRUE(f.term->SetPattern(PatternOf(seed)).ok());
    EXPECT_EQ(f.term->pattern(), PatternOf(seed));
    ASSERT_EQ(f.Read(7, 200), WcStatus::kSuccess);
    EXPECT_TRUE(f.IsPattern(PatternOf(seed), 7, 0, 200)) << seed;
  }
}

TEST_P(TermRegions, Resize_MovesTheEnd) {
  TermFixture f;
  ASSERT_TRUE(f.term->Resize(65).ok());
  EXPECT_EQ(f.term->bitmap_bytes(), 16u);
  ASSERT_EQ(f.Read(64 * 4096, 4096), WcStatus::kSuccess);
  EXPECT_EQ(f.term->Resize(129).code(), EINVAL);
  ASSERT_TRUE(f.term->Resize(10).ok());
  EXPECT_EQ(f.Read(10 * 4096 - 1, 2), WcStatus::kRemAccessErr);
}

TEST_P(TermRegions, WriteAndAtomics_AreRefused) {
  if (over_iwarp()) {
    TermFixture f;
    f.term->Publish({0}, {0});
    EXPECT_EQ(f.client.Run(f.client.Request(Opcode::kRdmaWrite, 0, 8, f.term->rkey(), 0)), WcStatus::kSuccess);
    EXPECT_NE(f.Read(0, 8), WcStatus::kSuccess);
    return;
  }
  for (const Opcode opcode : {Opcode::kRdmaWrite, Opcode::kFetchAdd, Opcode::kCompareSwap}) {
    TermFixture f;
    f.term->Publish({0}, {0});
    EXPECT_EQ(f.client.Run(f.client.Request(opcode, 0, 8, f.term->rkey(), 0)), WcStatus::kRemAccessErr);
  }
}

TEST_P(TermRegions, RpcKinds_RefuseRead) {
  for (const RegionKind kind :
       {RegionKind::kRpc, RegionKind::kRpcBuffer, RegionKind::kRpcDirect, RegionKind::kRpcTiering}) {
    TermFixture f(kind);
    f.term->Publish({0}, {0});
    EXPECT_EQ(f.Read(0, 8), WcStatus::kRemAccessErr);
  }
}

TEST_P(TermRegions, Destroy_LaterReadsFail) {
  TermFixture f;
  const RKey rkey = f.term->rkey();
  ASSERT_EQ(f.Read(0, 8), WcStatus::kSuccess);
  f.term.reset();
  EXPECT_EQ(f.client.Run(f.client.Request(Opcode::kRdmaRead, 0, 8, rkey, 0)), WcStatus::kRemAccessErr);
}

TEST_P(TermRegions, Decommit_GivesTheBytesBack) {
  TermFixture f;
  f.Fill({4}, 9);
  f.term->Decommit({4}, 1);
  EXPECT_EQ(f.term->frame({4})[5], std::byte{0});
  ASSERT_TRUE(f.term->Commit({100}, 28).ok());
  EXPECT_EQ(f.term->Commit({100}, 29).code(), EINVAL);
}

TEST_P(TermRegions, Commit_MoreThanTheMachineHasIsEnomem) {
  TermFixture f(RegionKind::kTerm, {}, 1, uint64_t{1} << 24);  // 64 GiB of frames, room only
  const Status status = f.term->Commit({0}, uint32_t{1} << 24);
  if (!status.ok()) {
    EXPECT_EQ(status.code(), ENOMEM);
  }
  EXPECT_TRUE(f.term->Commit({16}, 16).ok());
}

TEST_P(TermRegions, FramesKey_CoversTheFrames) {
  TermFixture f;
  memset(f.client.memory->data(), 0x5a, 4096);
  SendWorkRequest request = f.server.Request(Opcode::kRdmaRead, 0, 4096, f.client.region->rkey(), 0);
  request.local = {f.term->frame({7}), 4096, f.term->frames_lkey()};
  EXPECT_EQ(f.server.Run(request), WcStatus::kSuccess);
  EXPECT_EQ(f.term->frame({7})[4095], std::byte{0x5a});
}

TEST(SoftTermRegion, Odp_ReadWaitsUntilThePageIsPublished) {
  std::atomic<uint64_t> faulted{~uint64_t{0}};
  TermFixture f(RegionKind::kOdp, [&](PageIndex page) { faulted = page.value; });
  f.Fill({1}, 0x42);
  ASSERT_TRUE(f.client.Send(f.client.Request(Opcode::kRdmaRead, 0, 64, f.term->rkey(), 5 * 4096)).ok());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  WorkCompletion completion;
  while (faulted != 5 && std::chrono::steady_clock::now() < deadline) {
    ASSERT_EQ(f.client.queue->Poll({&completion, 1}), 0u);
  }
  ASSERT_EQ(faulted, 5u);
  f.term->Publish({5}, {1});
  EXPECT_EQ(f.client.WaitStatus(), WcStatus::kSuccess);
  EXPECT_EQ(f.At(63), std::byte{0x42});
}

TEST(SoftTermRegion, Odp_HandlerMayPublishAtOnce) {
  TermRegion* region = nullptr;
  TermFixture f(RegionKind::kOdp, [&](PageIndex page) { region->Publish(page, {static_cast<uint32_t>(page.value)}); });
  region = f.term.get();
  for (uint32_t page = 0; page < 16; page++) {
    f.Fill({page}, static_cast<int>(page));
  }
  ASSERT_EQ(f.Read(0, 16 * 4096), WcStatus::kSuccess);
  for (uint32_t page = 0; page < 16; page++) {
    EXPECT_EQ(f.At(page * 4096 + 4095), static_cast<std::byte>(page));
  }
}

TEST(SoftTermRegion, Odp_FailFaultFailsTheRead) {
  TermRegion* region = nullptr;
  TermFixture f(RegionKind::kOdp, [&](PageIndex page) { region->FailFault(page); });
  region = f.term.get();
  EXPECT_EQ(f.Read(0, 8), WcStatus::kRemOpErr);
}

TEST(SoftTermRegion, Odp_RegionDestroyedFailsTheRead) {
  std::atomic<bool> faulted{false};
  TermFixture f(RegionKind::kOdp, [&](PageIndex) { faulted = true; });
  ASSERT_TRUE(f.client.Send(f.client.Request(Opcode::kRdmaRead, 0, 64, f.term->rkey(), 0)).ok());
  WorkCompletion completion;
  while (!faulted) {
    ASSERT_EQ(f.client.queue->Poll({&completion, 1}), 0u);
  }
  f.term.reset();
  const auto got = f.client.Wait();
  ASSERT_TRUE(got);
  EXPECT_TRUE(got->status == WcStatus::kRemOpErr || got->status == WcStatus::kRemAccessErr);
}

TEST(SoftTermRegion, ReadNow_IsDataPatternOrARefusal) {
  TermFixture f;
  std::byte* const to = f.client.memory->data();
  const auto read_now = [&](uint64_t offset, uint32_t length, RKey rkey) {
    memset(to, 0x77, kPageSize);
    return f.client.pair->ReadNow(to, length, offset, rkey);
  };
  EXPECT_FALSE(read_now(0, 64, f.term->rkey()));  // the key is not known yet
  ASSERT_EQ(f.Read(0, 64), WcStatus::kSuccess);
  f.Fill({3}, 0xaa);
  f.term->Publish({1}, {3});
  ASSERT_TRUE(read_now(4096 + 100, 1000, f.term->rkey()));
  EXPECT_EQ(f.At(0), std::byte{0xaa});
  EXPECT_EQ(f.At(999), std::byte{0xaa});
  EXPECT_EQ(f.At(1000), std::byte{0x77});
  ASSERT_TRUE(read_now(2 * 4096 + 13, 1000, f.term->rkey()));  // absent
  EXPECT_TRUE(f.IsPattern(PatternOf(1), 2 * 4096 + 13, 0, 1000));
  f.term->BeginWrite({1});
  EXPECT_FALSE(read_now(4096, 64, f.term->rkey()));
  f.term->Publish({1}, {3});
  EXPECT_TRUE(read_now(4096, 64, f.term->rkey()));
  EXPECT_FALSE(read_now(64 * 4096, 64, f.term->rkey()));  // beyond the region
  EXPECT_FALSE(read_now(UINT64_MAX - 4095, 64, f.term->rkey()));
  EXPECT_FALSE(read_now(4096, 64, {f.term->rkey().value + 1}));
  EXPECT_FALSE(read_now(0, 64, f.server.region->rkey()));  // not a region of pages
  f.server.pair->Close();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (read_now(4096, 64, f.term->rkey()) && std::chrono::steady_clock::now() < deadline) {
  }
  EXPECT_FALSE(read_now(4096, 64, f.term->rkey()));  // the peer is gone
}

TEST(SoftTermRegion, ReadNow_OdpFaultsAreForWorkRequests) {
  TermFixture f(RegionKind::kOdp, [](PageIndex) {});
  f.Fill({3}, 0xaa);
  f.term->Publish({1}, {3});
  ASSERT_EQ(f.Read(4096, 64), WcStatus::kSuccess);
  EXPECT_TRUE(f.client.pair->ReadNow(f.client.memory->data(), 64, 4096, f.term->rkey()));
  EXPECT_FALSE(f.client.pair->ReadNow(f.client.memory->data(), 64, 0, f.term->rkey()));
}

}  // namespace
}  // namespace termfs::driver
