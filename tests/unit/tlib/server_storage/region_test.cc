// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/region.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "tests/unit/eventually.h"
#include "tests/unit/tlib/server_storage/region_fixture.h"
#include "tests/unit/tlib/server_storage/temp_folder.h"

namespace termfs::tlib::server {
namespace {

using driver::RegionKind;

constexpr RegionOffset kStart{0};

std::vector<std::byte> Bytes(uint64_t count, int value) { return std::vector(count, static_cast<std::byte>(value)); }

void ExpectRead(Region& region, RegionOffset at, const std::vector<std::byte>& expected) {
  std::vector<std::byte> found(expected.size());
  const Status status = region.Read(at, found);
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_TRUE(found == expected) << "at " << at.value;
}

Status FlushAll(Region& region, uint64_t pages) {
  const PageRange all{.first = {0}, .count = pages};
  return region.Flush({&all, 1});
}

int FailWrites(const BlockIo& io) { return io.kind == BlockIo::Kind::kWrite ? EIO : 0; }
int FailReads(const BlockIo& io) { return io.kind == BlockIo::Kind::kRead ? EIO : 0; }

TEST(Region, Read_OfWhatWasWritten_IsTheSameForEveryRatio) {
  for (const double ratio : {0.0, 0.05, 0.5, 1.0}) {
    RegionFixture fixture({.pages = 256, .dram_ratio = ratio});
    fixture.Run([&](Region& region) {
      EXPECT_TRUE(region.Write({1234}, Bytes(300000, 0x5a)).ok());
      ExpectRead(region, {1134}, Bytes(100, 0));
      ExpectRead(region, {1234}, Bytes(300000, 0x5a));
      ExpectRead(region, {301234}, Bytes(5000, 0));
    });
  }
}

TEST(Region, Read_NeverWritten_IsZerosWithoutTouchingTheDevice) {
  RegionFixture fixture({.pages = 64, .dram_ratio = 0.1});
  fixture.Run([&](Region& region) { ExpectRead(region, kStart, Bytes(64 * kPageSize, 0)); });
  EXPECT_EQ(fixture.device().reads(), 0U);
}

TEST(Region, Read_AdjacentAbsentPages_IsOneAccess) {
  RegionFixture fixture({.pages = 64, .dram_ratio = 0});
  fixture.Run([&](Region& region) {
    EXPECT_TRUE(region.Write(kStart, Bytes(64 * kPageSize, 1)).ok());
    ExpectRead(region, {100}, Bytes(40 * kPageSize, 1));
  });
  EXPECT_EQ(fixture.device().reads(), 1U);
  EXPECT_EQ(fixture.device().writes(), 1U);
}

TEST(Region, ReadPages_MissingBits_DeliversExactlyThose) {
  class Collect final : public PieceSink {
   public:
    Status Take(std::span<const Piece> pieces) override {
      for (const Piece& piece : pieces) {
        found.emplace_back(piece.at, piece.length, piece.from_frame);
        EXPECT_EQ(piece.data[0], std::byte{7});
      }
      return Status::Ok();
    }
    std::vector<std::tuple<uint32_t, uint32_t, bool>> found;
  };
  RegionFixture fixture({.pages = 64, .dram_ratio = 1});
  fixture.Run([&](Region& region) {
    EXPECT_TRUE(region.Write(kStart, Bytes(8 * kPageSize, 7)).ok());
    const uint64_t missing = 0b1101;
    Collect sink;
    EXPECT_TRUE(region.ReadPages({100}, 4 * kPageSize - 200, {&missing, 1}, sink).ok());
    EXPECT_EQ(sink.found, (std::vector<std::tuple<uint32_t, uint32_t, bool>>{
                              {0, 3996, true}, {2 * 4096 - 100, 4096, true}, {3 * 4096 - 100, 3996, true}}));
    EXPECT_EQ(region.ReadPages(kStart, 8 * kPageSize, {}, sink).code(), 0);
    EXPECT_EQ(region.ReadPages({1}, 64 * kPageSize, {}, sink).code(), EINVAL);
    EXPECT_EQ(region.ReadPages(kStart, 64 * kPageSize + 1, {&missing, 1}, sink).code(), EINVAL);
  });
}

TEST(Region, Write_CheckFails_ChangesNothingFromThatPageOn) {
  for (const double ratio : {0.0, 1.0}) {
    RegionFixture fixture({.pages = 16, .dram_ratio = ratio});
    fixture.Run([&](Region& region) {
      EXPECT_TRUE(region.Write(kStart, Bytes(4 * kPageSize, 1)).ok());
      int asked = 0;
      const auto check = [&] { return ++asked <= 2 ? Status::Ok() : Status::Error(ESTALE, "the file moved on"); };
      EXPECT_EQ(region.Write(kStart, Bytes(4 * kPageSize, 2), check).code(), ESTALE);
      ExpectRead(region, kStart, Bytes(2 * kPageSize, 2));
      ExpectRead(region, {2 * kPageSize}, Bytes(2 * kPageSize, 1));
    });
  }
}

TEST(Region, Write_CheckFailsWithinALongRun_ChangesNothingFromThatPageOn) {
  constexpr uint64_t kRun = 64;
  constexpr int kGood = 20;
  for (const double ratio : {0.0, 0.25, 1.0}) {
    RegionFixture fixture({.pages = 4096, .dram_ratio = ratio});
    fixture.Run([&](Region& region) {
      int asked = 0;
      const auto check = [&] { return ++asked <= kGood ? Status::Ok() : Status::Error(ESTALE, "the file moved on"); };
      EXPECT_EQ(region.Write(kStart, Bytes(kRun * kPageSize, 2), check).code(), ESTALE);
      ExpectRead(region, kStart, Bytes(kGood * kPageSize, 2));
      ExpectRead(region, {kGood * kPageSize}, Bytes((kRun - kGood) * kPageSize, 0));
    });
    const uint64_t used = fixture.Gauge("frames_used");
    EXPECT_EQ(used, fixture.Gauge("pages_present")) << "the other frames of the run are free again";
  }
}

TEST(Region, Flush_WriteBackFails_IsEioAndNothingIsLost) {
  RegionFixture fixture({.pages = 64, .dram_ratio = 1});
  fixture.Run([&](Region& region) {
    EXPECT_TRUE(region.Write(kStart, Bytes(8 * kPageSize, 3)).ok());
    fixture.device().InjectFault(FailWrites);
    EXPECT_EQ(FlushAll(region, 64).code(), EIO);
    ExpectRead(region, kStart, Bytes(8 * kPageSize, 3));
    fixture.device().InjectFault(nullptr);
    EXPECT_TRUE(FlushAll(region, 64).ok());
  });
  fixture.CrashAndReopen(1);
  fixture.Run([&](Region& region) { ExpectRead(region, kStart, Bytes(8 * kPageSize, 3)); });
}

TEST(Region, Flush_DeviceFlushFails_IsEioAndMarksNothing) {
  RegionFixture fixture({.pages = 64, .dram_ratio = 1});
  fixture.Run([&](Region& region) {
    EXPECT_TRUE(region.Write(kStart, Bytes(kPageSize, 3)).ok());
    fixture.device().FailFlushes(EIO);
    EXPECT_EQ(FlushAll(region, 64).code(), EIO);
    EXPECT_EQ(fixture.log_device().writes(), 0U);
    fixture.device().FailFlushes(0);
    EXPECT_GT(region.failed_flushes(), 0U);
    EXPECT_TRUE(FlushAll(region, 64).ok());
  });
  fixture.CrashAndReopen(2);
  fixture.Run([&](Region& region) { ExpectRead(region, kStart, Bytes(kPageSize, 3)); });
}

TEST(Region, Flush_NothingNew_CostsNoDeviceFlush) {
  RegionFixture fixture({.pages = 64, .dram_ratio = 1});
  fixture.Run([&](Region& region) {
    EXPECT_TRUE(region.Write(kStart, Bytes(kPageSize, 3)).ok());
    EXPECT_TRUE(FlushAll(region, 64).ok());
    const uint64_t flushes = fixture.device().flushes();
    EXPECT_TRUE(FlushAll(region, 64).ok());
    EXPECT_EQ(fixture.device().flushes(), flushes);
    const uint64_t log_writes = fixture.log_device().writes();
    EXPECT_TRUE(region.Write(kStart, Bytes(kPageSize, 4)).ok());
    EXPECT_TRUE(FlushAll(region, 64).ok());
    EXPECT_EQ(fixture.log_device().writes(), log_writes) << "a page that is marked needs no entry";
  });
}

TEST(Region, Write_DuringWriteBack_MakesThePageDirtyAgain) {
  RegionFixture fixture({.pages = 64, .dram_ratio = 1});
  fixture.Run([&](Region& region) { EXPECT_TRUE(region.Write(kStart, Bytes(kPageSize, 1)).ok()); });
  fixture.device().Hold();
  fixture.runner().RunAll({[&] { EXPECT_TRUE(FlushAll(fixture.region(), 64).ok()); },
                           [&] {
                             while (fixture.device().waiting() == 0) {
                               Task::Yield();
                             }
                             EXPECT_TRUE(fixture.region().Write(kStart, Bytes(kPageSize, 2)).ok());
                             fixture.device().LetGo();
                           }});
  EXPECT_EQ(fixture.Gauge("pages_dirty"), 1U);
  fixture.Run([&](Region& region) { EXPECT_TRUE(FlushAll(region, 64).ok()); });
  fixture.CrashAndReopen(3);
  fixture.Run([&](Region& region) { ExpectRead(region, kStart, Bytes(kPageSize, 2)); });
}

TEST(Region, Flush_WhileAnotherWritesThePageBack_WaitsForThatAndForWhatIsNewer) {
  for (const bool newer : {false, true}) {
    RegionFixture fixture({.pages = 64, .dram_ratio = 1});
    fixture.Run([&](Region& region) { EXPECT_TRUE(region.Write(kStart, Bytes(kPageSize, 1)).ok()); });
    fixture.device().Hold();
    std::atomic<bool> began{false};
    std::atomic<bool> ended{false};
    const auto under_way = [&] {
      while (fixture.device().waiting() == 0) {
        Task::Yield();
      }
    };
    fixture.runner().RunAll({[&] { EXPECT_TRUE(FlushAll(fixture.region(), 64).ok()); },
                             [&] {
                               under_way();
                               if (newer) {
                                 EXPECT_TRUE(fixture.region().Write(kStart, Bytes(kPageSize, 2)).ok());
                               }
                               began = true;
                               EXPECT_TRUE(FlushAll(fixture.region(), 64).ok());
                               ended = true;
                             },
                             [&] {
                               under_way();
                               while (!began) {
                                 Task::Yield();
                               }
                               Task::ParkUntil(std::chrono::steady_clock::now() + std::chrono::milliseconds(50));
                               EXPECT_FALSE(ended);
                               fixture.device().LetGo();
                             }});
    EXPECT_EQ(fixture.Gauge("pages_dirty"), 0U);
    fixture.CrashAndReopen(3);
    fixture.Run([&](Region& region) { ExpectRead(region, kStart, Bytes(kPageSize, newer ? 2 : 1)); });
  }
}

TEST(Region, Read_DeviceFails_IsEioAndLaterFine) {
  RegionFixture fixture({.pages = 64, .dram_ratio = 0});
  fixture.Run([&](Region& region) {
    EXPECT_TRUE(region.Write(kStart, Bytes(4 * kPageSize, 3)).ok());
    fixture.device().InjectFault(FailReads);
    std::vector<std::byte> bytes(100);
    EXPECT_EQ(region.Read({10}, bytes).code(), EIO);
    EXPECT_EQ(region.Write({10}, Bytes(5, 9)).code(), EIO);  // needs the rest of the page
    fixture.device().InjectFault(nullptr);
    ExpectRead(region, kStart, Bytes(4 * kPageSize, 3));
  });
}

TEST(Region, Write_ThroughFailsOnAZeroPage_LeavesItZero) {
  RegionFixture fixture({.pages = 64, .dram_ratio = 0});
  fixture.Run([&](Region& region) {
    fixture.device().InjectFault(FailWrites);
    EXPECT_EQ(region.Write(kStart, Bytes(2 * kPageSize, 3)).code(), EIO);
    EXPECT_EQ(region.Write({3 * kPageSize + 5}, Bytes(10, 3)).code(), EIO);
    ExpectRead(region, kStart, Bytes(8 * kPageSize, 0));
  });
}

TEST(Region, Zero_ThenCrash_ReadsAsZeros) {
  RegionFixture fixture({.pages = 64, .dram_ratio = 0.5});
  fixture.Run([&](Region& region) {
    EXPECT_TRUE(region.Write(kStart, Bytes(40 * kPageSize, 3)).ok());
    EXPECT_TRUE(FlushAll(region, 64).ok());
    const PageRange range{.first = {2}, .count = 30};
    const uint64_t writes = fixture.device().writes();
    EXPECT_TRUE(region.Zero({&range, 1}).ok());
    EXPECT_EQ(fixture.device().writes(), writes);
  });
  fixture.CrashAndReopen(4);
  fixture.Run([&](Region& region) {
    ExpectRead(region, kStart, Bytes(2 * kPageSize, 3));
    ExpectRead(region, {2 * kPageSize}, Bytes(30 * kPageSize, 0));
    EXPECT_TRUE(region.Write({3 * kPageSize + 100}, Bytes(10, 5)).ok());  // the rest of the page stays zero
    ExpectRead(region, {3 * kPageSize + 110}, Bytes(1000, 0));
  });
}

TEST(Region, Zero_LogCannotBeWritten_IsTheError) {
  RegionFixture fixture({.pages = 64, .dram_ratio = 0.5});
  fixture.Run([&](Region& region) {
    EXPECT_TRUE(region.Write(kStart, Bytes(kPageSize, 3)).ok());
    EXPECT_TRUE(FlushAll(region, 64).ok());
    fixture.log_device().InjectFault(FailWrites);
    const PageRange range{.first = {0}, .count = 1};
    EXPECT_EQ(region.Zero({&range, 1}).code(), EIO);
    fixture.log_device().InjectFault(nullptr);
    EXPECT_TRUE(region.Zero({&range, 1}).ok());
  });
  fixture.CrashAndReopen(5);
  fixture.Run([&](Region& region) { ExpectRead(region, kStart, Bytes(kPageSize, 0)); });
}

TEST(Region, SetDramRatio_DownAndUp_KeepsEveryByteAndGivesMemoryBack) {
  RegionFixture fixture({.pages = 4096, .dram_ratio = 1});
  fixture.Run([&](Region& region) {
    for (int i = 0; i < 4096; i++) {
      EXPECT_TRUE(region.Write({i * kPageSize}, Bytes(kPageSize, i % 100)).ok());
    }
    EXPECT_EQ(fixture.term().committed_frames(), 4096U);
    EXPECT_TRUE(region.SetDramRatio(0.25).ok());
    EXPECT_EQ(fixture.Gauge("frames_budget"), 1024U);
    EXPECT_LE(fixture.Gauge("frames_used"), 1024U);
    EXPECT_EQ(fixture.term().committed_frames(), 1024U);
    EXPECT_TRUE(region.SetDramRatio(0).ok());
    EXPECT_EQ(fixture.Gauge("pages_present"), 0U);
    EXPECT_TRUE(region.SetDramRatio(0.5).ok());
    for (int i = 0; i < 4096; i++) {
      ExpectRead(region, {i * kPageSize}, Bytes(kPageSize, i % 100));
    }
    EXPECT_GT(fixture.Gauge("pages_present"), 1900U);
    EXPECT_EQ(region.SetDramRatio(1.5).code(), EINVAL);
  });
}

// It asks again now and then, not all the time.
TEST(Region, SetDramRatio_TheDeviceRefusesForAWhile_IsAskedNowAndThen) {
  RegionFixture fixture({.pages = 64, .dram_ratio = 1});
  std::atomic<uint64_t> refused{0};
  fixture.Run([&](Region& region) {
    for (uint64_t page = 0; page < 24; page++) {
      EXPECT_TRUE(region.Write({page * kPageSize}, Bytes(100, 1)).ok());
    }
    const auto recovers = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
    fixture.device().InjectFault([&, recovers](const BlockIo& io) {
      const bool refuses = io.kind == BlockIo::Kind::kWrite && std::chrono::steady_clock::now() < recovers;
      refused += refuses ? 1 : 0;
      return refuses ? EIO : 0;
    });
    const Status lowered = region.SetDramRatio(0);
    EXPECT_TRUE(lowered.ok()) << lowered.ToString();
    ExpectRead(region, {23 * kPageSize}, Bytes(100, 1));
  });
  EXPECT_GT(refused, 0U) << "or it shows nothing";
  EXPECT_LT(refused, 64U);
}

TEST(Region, SetDramRatio_AgainAfterATimeout_EmptiesWhatWasLeft) {
  RegionFixture fixture({.pages = 64, .dram_ratio = 1, .shrink_timeout = std::chrono::milliseconds(50)});
  fixture.Run([&](Region& region) {
    for (uint64_t page = 0; page < 48; page++) {
      EXPECT_TRUE(region.Write({page * kPageSize}, Bytes(100, 1)).ok());
    }
    fixture.device().InjectFault([](const BlockIo& io) { return io.kind == BlockIo::Kind::kWrite ? EIO : 0; });
    EXPECT_EQ(region.SetDramRatio(0.25).code(), ETIMEDOUT);
    fixture.device().InjectFault(nullptr);
  });
  EXPECT_EQ(fixture.Gauge("frames_budget"), 16U);
  EXPECT_GT(fixture.Gauge("frames_used"), 16U) << "or it shows nothing";
  Status again;
  do {  // each has 50 ms
    fixture.Run([&](Region& region) { again = region.SetDramRatio(0.25); });
  } while (again.code() == ETIMEDOUT);
  EXPECT_TRUE(again.ok()) << again.ToString();
  EXPECT_LE(fixture.Gauge("frames_used"), 16U);
  fixture.Run([&](Region& region) { ExpectRead(region, {47 * kPageSize}, Bytes(100, 1)); });
}

TEST(Region, SetDramRatio_UpAfterATimeout_DoesNotWaitForWhatWasLeft) {
  RegionFixture fixture({.pages = 64,
                         .dram_ratio = 1,
                         .kind = RegionKind::kOdp,  // whose faults need a frame, whatever the heat
                         .shrink_timeout = std::chrono::milliseconds(50)});
  fixture.Run([&](Region& region) {
    for (uint64_t page = 0; page < 48; page++) {
      EXPECT_TRUE(region.Write({page * kPageSize}, Bytes(100, 1)).ok());
    }
    fixture.device().InjectFault(FailWrites);
    EXPECT_EQ(region.SetDramRatio(0.25).code(), ETIMEDOUT);
    const Status raised = region.SetDramRatio(0.5);
    EXPECT_TRUE(raised.ok()) << raised.ToString();
  });
  EXPECT_EQ(fixture.Gauge("frames_budget"), 32U);
  EXPECT_EQ(fixture.Gauge("frames_used"), 48U) << "or it shows nothing";
  EXPECT_EQ(fixture.term().committed_frames(), 64U) << "that of what is left is still there";
  fixture.device().InjectFault(nullptr);
  // Victims are looked for there, too.
  EXPECT_TRUE(Eventually([&] {
    fixture.Run([&](Region& region) {
      EXPECT_TRUE(FlushAll(region, 64).ok());
      for (uint64_t page = 0; page < 64; page++) {
        fixture.term().RaiseFault({page});
        while (fixture.term().Published({page}) == nullptr) {
          Task::Yield();
        }
      }
    });
    return fixture.Gauge("frames_used") <= 32U;
  })) << fixture.Gauge("frames_used");
  Status again;
  do {  // each has 50 ms
    fixture.Run([&](Region& region) { again = region.SetDramRatio(0.5); });
  } while (again.code() == ETIMEDOUT);
  EXPECT_TRUE(again.ok()) << again.ToString();
  fixture.Run([&](Region& region) {
    for (uint64_t page = 0; page < 48; page++) {
      ExpectRead(region, {page * kPageSize}, Bytes(100, 1));
    }
  });
}

TEST(Region, SetDramRatio_MemoryRunsOut_StaysAsItWas) {
  RegionFixture fixture({.pages = 4096, .dram_ratio = 0.25});
  fixture.term().FailCommitsFrom(2048);
  fixture.Run([&](Region& region) { EXPECT_EQ(region.SetDramRatio(1).code(), ENOMEM); });
  EXPECT_EQ(fixture.term().committed_frames(), 1024U);
  EXPECT_EQ(fixture.Gauge("frames_budget"), 1024U);
}

TEST(Region, Write_BigSequential_LeavesTheHotSetInFrames) {
  RegionFixture fixture({.pages = 2048, .dram_ratio = 0.25});
  fixture.Run([&](Region& region) {
    EXPECT_TRUE(region.Write(kStart, Bytes(512 * kPageSize, 1)).ok());
    EXPECT_TRUE(FlushAll(region, 2048).ok());
    std::vector<HeatEntry> counts;
    for (uint32_t page = 0; page < 512; page++) {
      counts.push_back({page, 50});
    }
    for (int i = 0; i < 5; i++) {
      region.AddCounts(counts);
      ExpectRead(region, kStart, Bytes(512 * kPageSize, 1));
    }
    for (uint64_t page = 512; page < 2048; page++) {  // page by page: the worst way
      EXPECT_TRUE(region.Write({page * kPageSize}, Bytes(kPageSize, 2)).ok());
    }
  });
  uint64_t hot_present = 0;
  for (uint64_t page = 0; page < 512; page++) {
    hot_present += fixture.term().Published({page}) != nullptr ? 1 : 0;
  }
  EXPECT_GT(hot_present, 512U * 85 / 100);
}

TEST(Region, Write_InLongRuns_LeavesTheHotSetInFrames) {
  RegionFixture fixture({.pages = 8192, .dram_ratio = 0.25});
  constexpr uint64_t kHot = 2048 - 512;
  fixture.Run([&](Region& region) {
    EXPECT_TRUE(region.Write(kStart, Bytes(kHot * kPageSize, 1)).ok());
    EXPECT_TRUE(FlushAll(region, 8192).ok());
    std::vector<HeatEntry> counts;
    for (uint32_t page = 0; page < kHot; page++) {
      counts.push_back({page, 50});
    }
    for (int i = 0; i < 5; i++) {
      region.AddCounts(counts);
      ExpectRead(region, kStart, Bytes(kHot * kPageSize, 1));
    }
    for (uint64_t page = kHot; page < 8192; page += 64) {
      EXPECT_TRUE(region.Write({page * kPageSize}, Bytes(64 * kPageSize, 2)).ok());
      Task::Yield();
    }
  });
  uint64_t hot_present = 0;
  for (uint64_t page = 0; page < kHot; page++) {
    hot_present += fixture.term().Published({page}) != nullptr ? 1 : 0;
  }
  EXPECT_GT(hot_present, kHot * 95 / 100);
}

TEST(Region, Pin_Start_LoadsEverything) {
  RegionFixture fixture({.pages = 300, .kind = RegionKind::kPin});
  fixture.Run([&](Region& region) { EXPECT_TRUE(region.Write({5000}, Bytes(10000, 9)).ok()); });
  EXPECT_TRUE(fixture.Close().ok());
  fixture.Open();
  EXPECT_EQ(fixture.Gauge("pages_present"), 300U);
  EXPECT_EQ(fixture.term().Published({2})[0], std::byte{9});
}

TEST(Region, Odp_Fault_PublishesThePageOrFails) {
  RegionFixture fixture({.pages = 64, .dram_ratio = 0.05, .kind = RegionKind::kOdp});
  fixture.Run([&](Region& region) {
    EXPECT_TRUE(region.Write(kStart, Bytes(64 * kPageSize, 6)).ok());
    EXPECT_TRUE(FlushAll(region, 64).ok());
    for (uint64_t page = 0; page < 64; page++) {
      fixture.term().RaiseFault({page});
      while (fixture.term().Published({page}) == nullptr) {
        Task::Yield();
      }
      EXPECT_EQ(fixture.term().Published({page})[100], std::byte{6});
    }
    fixture.device().InjectFault(FailReads);
    fixture.term().RaiseFault({0});
    while (fixture.term().failed_faults().empty()) {
      Task::Yield();
    }
  });
  EXPECT_EQ(fixture.Count("faults_total"), 65U);
}

TEST(Region, Read_WithAFrameForEveryPage_MissesNoneTwice) {
  constexpr uint64_t kPages = 256;
  RegionFixture fixture({.pages = kPages, .dram_ratio = 1, .sample_period = std::chrono::milliseconds(1)});
  std::vector<std::byte> bytes(kPages * kPageSize, std::byte{1});
  uint64_t first = 0;
  fixture.Run([&](Region& region) {
    ASSERT_TRUE(region.Write({0}, bytes, nullptr).ok());
    ASSERT_TRUE(region.Read({0}, bytes).ok());  // the last pages were written through
    first = fixture.Count("ssd_reads_total");
    for (int i = 0; i < 100; i++) {
      ASSERT_TRUE(region.Read({0}, bytes).ok());
      Task::ParkUntil(std::chrono::steady_clock::now() + std::chrono::milliseconds(1));
    }
  });
  EXPECT_EQ(fixture.Count("evictions_total"), 0U);
  EXPECT_EQ(fixture.Count("ssd_reads_total"), first);
}

TEST(Region, AddCounts_HotAbsentPages_AreLoadedWithinAPeriod) {
  RegionFixture fixture({.pages = 512, .dram_ratio = 0.125});
  fixture.Run([&](Region& region) {
    EXPECT_TRUE(region.Write(kStart, Bytes(512 * kPageSize, 1)).ok());
    EXPECT_TRUE(FlushAll(region, 512).ok());
    std::vector<HeatEntry> counts;
    for (uint32_t page = 400; page < 420; page++) {
      counts.push_back({page, 1000});
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    bool all = false;
    while (!all && std::chrono::steady_clock::now() < deadline) {
      region.AddCounts(counts);
      Task::ParkUntil(std::chrono::steady_clock::now() + std::chrono::milliseconds(10));
      all = true;
      for (uint64_t page = 400; page < 420; page++) {
        all = all && fixture.term().Published({page}) != nullptr;
      }
    }
    EXPECT_TRUE(all);
  });
  EXPECT_GE(fixture.Count("promotions_total"), 20U);
}

TEST(Region, Format_ThatFails_LeavesNothingBehindAndTakesNothingAway) {
  TempFolder folder;
  RegionOptions options;
  options.pages = 500;
  options.device = folder.path() + "/region";
  options.written_log = folder.path() + "/none/written";
  EXPECT_EQ(Region::Format(options, nullptr).code(), ENOENT);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  options.written_log = folder.path() + "/written";
  std::filesystem::create_symlink("nowhere", options.device);
  EXPECT_EQ(Region::Format(options, nullptr).code(), EEXIST);
  EXPECT_TRUE(std::filesystem::is_symlink(options.device));
}

TEST(Region, FormatThenOpen_OnRealFiles_KeepsWhatWasFlushed) {
  TempFolder folder;
  for (const RegionKind kind :
       {RegionKind::kTerm, RegionKind::kOdp, RegionKind::kRpc, RegionKind::kRpcBuffer, RegionKind::kRpcDirect}) {
    RegionOptions options;
    options.kind = kind;
    options.pages = 500;
    options.dram_ratio = 0.1;
    options.device = folder.path() + "/region-" + std::string(driver::ToString(kind));
    options.written_log = options.device + ".written";
    ASSERT_TRUE(Region::Format(options, nullptr).ok());
    EXPECT_EQ(Region::Format(options, nullptr).code(), EEXIST);
    TaskRunner runner;
    MetricsRegistry metrics;
    driver::FakeNic nic;
    for (int round = 0; round < 2; round++) {
      auto opened = Region::Open(options, {.nic = nic, .domain = nic, .metrics = metrics, .spawn = runner.spawner()});
      ASSERT_TRUE(opened.ok()) << opened.status().ToString();
      Region& region = **opened;
      runner.Run([&] {
        EXPECT_TRUE(region.Start(nullptr).ok());
        if (round == 0) {
          EXPECT_TRUE(region.Write({777}, Bytes(1000000, 8)).ok());
        }
        ExpectRead(region, {777}, Bytes(1000000, 8));
        ExpectRead(region, {1000777}, Bytes(100000, 0));
        EXPECT_TRUE(region.Stop().ok());
      });
    }
  }
}

}  // namespace
}  // namespace termfs::tlib::server
