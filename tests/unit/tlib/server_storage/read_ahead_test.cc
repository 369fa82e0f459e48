// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/read_ahead.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"
#include "tests/unit/tlib/server_storage/region_fixture.h"

namespace termfs::tlib::server {
namespace {

constexpr uint64_t kPages = 4096;
constexpr uint64_t kFrames = 2048;  // a sixteenth of them pass, so that a reader's window is 32 pages
constexpr RegionSetup kSetup{.pages = kPages, .dram_ratio = 0.5};

constexpr size_t kOthers = 5;  // tasks that run anyway: three of the cleaner, the promoter, the test

class Bytes final : public PieceSink {
 public:
  Status Take(std::span<const Piece> pieces) override {
    for (const Piece& piece : pieces) {
      wrong += static_cast<uint64_t>(
          std::count_if(piece.data, piece.data + piece.length, [](std::byte b) { return b != std::byte{3}; }));
    }
    return Status::Ok();
  }
  uint64_t wrong = 0;
};

class ReadAheadTest : public ::testing::Test {
 protected:
  explicit ReadAheadTest(const RegionSetup& setup = kSetup) : fixture_(setup) {
    fixture_.Run([](Region& region) {
      const std::vector<std::byte> bytes(kPages * kPageSize, std::byte{3});
      EXPECT_TRUE(region.Write({0}, bytes).ok());
    });
    EXPECT_TRUE(fixture_.Close().ok());  // some of what was written last is in frames
    fixture_.Open();
    fixture_.Run([](Region& region) {
      std::vector<std::byte> bytes(kFrames * kPageSize);
      EXPECT_TRUE(region.Read({0}, bytes).ok());
    });
  }

  bool Present(uint64_t page) { return fixture_.term().Published({page}) != nullptr; }
  bool AllPresent(uint64_t first, uint64_t end) {
    for (uint64_t page = first; page < end; page++) {
      if (!Present(page)) {
        return false;
      }
    }
    return true;
  }
  // As a client does: by RPC where it finds a page absent.
  void ReadOne(Region& region, uint64_t page) {
    if (!Present(page)) {
      Bytes sink;
      const Status read = region.ReadPages({page * kPageSize}, kPageSize, {}, sink);
      EXPECT_TRUE(read.ok()) << read.ToString();
      EXPECT_EQ(sink.wrong, 0u) << "page " << page;
      rpcs_++;
    }
  }
  // In a task: until nothing is loaded any more.
  void Settle() {
    while (fixture_.runner().running() > kOthers) {
      Task::ParkUntil(std::chrono::steady_clock::now() + std::chrono::milliseconds(1));
    }
  }

  RegionFixture fixture_;
  uint64_t rpcs_ = 0;
};

TEST_F(ReadAheadTest, TwoMissesInARow_LoadWhatComesNext) {
  fixture_.Run([&](Region& region) {
    ReadOne(region, 3000);
    Settle();
    EXPECT_FALSE(Present(3001)) << "one read is no sequence";
    ReadOne(region, 3001);
    Settle();
  });
  EXPECT_TRUE(AllPresent(3002, 3002 + 4));
  EXPECT_FALSE(Present(3002 + 4)) << "two may be chance";
}

TEST_F(ReadAheadTest, AReaderAtHisLeisure_AsksOnceForEachWindow) {
  const uint64_t bytes = fixture_.Count("ssd_read_bytes_total");
  const uint64_t promotions = fixture_.Count("promotions_total");
  fixture_.Run([&](Region& region) {
    for (uint64_t page = 3000; page < 3320; page++) {
      ReadOne(region, page);
      Settle();
    }
  });
  EXPECT_GE(fixture_.Count("read_ahead_pages_total"), 320 - rpcs_);
  EXPECT_LE(fixture_.Count("promotions_total") - promotions, rpcs_) << "what passes is not promoted";
  EXPECT_LE(rpcs_, 2 + 4 + 320 / 16u) << "the window doubles to 32 pages";
  EXPECT_LE(fixture_.Count("ssd_read_bytes_total") - bytes, (320 + 32) * kPageSize) << "some was read twice";
}

TEST_F(ReadAheadTest, SeveralReaders_EachHasHisOwn) {
  constexpr uint64_t kReaders = 8;
  fixture_.Run([&](Region& region) {
    for (uint64_t i = 0; i < 64; i++) {
      for (uint64_t reader = 0; reader < kReaders; reader++) {
        ReadOne(region, 2100 + reader * 200 + i);
      }
      Settle();
    }
  });
  // Together they are wider than the queue that what they read ahead passes through, so some of it goes too early.
  EXPECT_LE(rpcs_, kReaders * 64 * 2 / 3);  // 0.45 to 0.58
}

TEST_F(ReadAheadTest, ReadsOfPartsOfPages_AreASequenceToo) {
  fixture_.Run([&](Region& region) {
    Bytes sink;
    for (uint64_t at = 3000 * kPageSize; at < 3002 * kPageSize + 100; at += 1000) {
      EXPECT_TRUE(region.ReadPages({at}, 1000, {}, sink).ok());
    }
    EXPECT_EQ(sink.wrong, 0u);
    Settle();
  });
  EXPECT_TRUE(AllPresent(3003, 3003 + 3));
}

TEST_F(ReadAheadTest, AmongManyScatteredReads_AReaderKeepsHisWindow) {
  constexpr uint64_t kRead = 60;
  fixture_.Run([&](Region& region) {
    Bytes sink;
    for (uint64_t i = 0; i < kRead; i++) {
      ReadOne(region, 3000 + i);
      for (uint64_t j = 0; j < 8; j++) {  // each another one; soon more between two misses than are remembered
        const uint64_t page = 2100 + (i * 8 + j) * 397 % 800;
        EXPECT_TRUE(region.ReadPages({page * kPageSize}, kPageSize, {}, sink).ok());
      }
      Settle();
    }
  });
  EXPECT_LE(rpcs_, kRead / 6);
}

TEST_F(ReadAheadTest, PairsOfReads_LoadLittle) {
  const uint64_t bytes = fixture_.Count("ssd_read_bytes_total");
  fixture_.Run([&](Region& region) {
    for (uint64_t i = 0; i < 100; i++) {
      ReadOne(region, 2100 + i * 19);
      ReadOne(region, 2100 + i * 19 + 1);
      Settle();
    }
  });
  EXPECT_LE(fixture_.Count("ssd_read_bytes_total") - bytes, 3 * rpcs_ * kPageSize);
}

// Every one of them lies in what some stream takes to be its own once streams have become long.
TEST_F(ReadAheadTest, ReadsAtRandom_LoadHardlyMoreThanTheyAskFor) {
  constexpr uint64_t kReads = 4000;
  uint64_t absent = 0;
  fixture_.Run([&](Region& region) {
    for (uint64_t reader = 0; reader < 16; reader++) {  // leave long streams behind
      for (uint64_t i = 0; i < 64; i++) {
        ReadOne(region, 2100 + reader * 100 + i);
      }
      Settle();
    }
    const uint64_t begun = fixture_.Count("ssd_read_bytes_total");
    const uint64_t asked = rpcs_;
    Random random(7);
    for (uint64_t i = 0; i < kReads; i++) {
      ReadOne(region, 2048 + random.Below(2000));
      if (i % 16 == 0) {
        Settle();
      }
    }
    Settle();
    absent = rpcs_ - asked;
    EXPECT_LE(fixture_.Count("ssd_read_bytes_total") - begun, absent * kPageSize * 2);
  });
  EXPECT_GT(absent, kReads / 4) << "or it shows nothing";
}

TEST_F(ReadAheadTest, WhatIsAskedForInVain_LoadsNothing) {
  const uint64_t bytes = fixture_.Count("ssd_read_bytes_total");
  fixture_.Run([&](Region& region) {
    Bytes sink;
    const uint64_t none = 0;
    for (uint64_t page = 3000; page < 3100; page++) {
      EXPECT_TRUE(region.ReadPages({page * kPageSize}, kPageSize, {&none, 1}, sink).ok());
    }
    Settle();
  });
  EXPECT_EQ(fixture_.Count("ssd_read_bytes_total"), bytes);
}

TEST_F(ReadAheadTest, ScatteredReads_LoadNothing) {
  const uint64_t before = fixture_.device().reads();
  fixture_.Run([&](Region& region) {
    for (uint64_t i = 0; i < 500; i++) {
      ReadOne(region, 2100 + i * 1571 % 1900);
    }
    Bytes sink;
    for (; rpcs_ < 520; rpcs_++) {  // the same again is no sequence
      EXPECT_TRUE(region.ReadPages({4050 * kPageSize}, kPageSize, {}, sink).ok());
    }
    Settle();
  });
  EXPECT_LE(fixture_.device().reads() - before, rpcs_);
  EXPECT_FALSE(Present(4051));
}

TEST_F(ReadAheadTest, AScanOfEverything_LeavesTheHotSetInFrames) {
  fixture_.Run([&](Region& region) {
    std::vector<HeatEntry> counts;
    for (uint32_t page = 0; page < kPages; page++) {
      if (Present(page)) {
        counts.push_back({page, 50});
      }
    }
    for (int i = 0; i < 3; i++) {
      region.AddCounts(counts);
    }
    for (uint64_t page = 0; page < kPages; page++) {
      ReadOne(region, page);
      if (page % 8 == 0) {
        Settle();
      }
    }
    uint64_t hot = 0;
    for (const HeatEntry& entry : counts) {
      hot += Present(entry.page) ? 1 : 0;
    }
    EXPECT_GT(counts.size(), kFrames * 9 / 10);
    EXPECT_GT(hot, counts.size() * 85 / 100);
  });
  EXPECT_LT(rpcs_, (kPages - kFrames) / 2) << "and it was read ahead all the same";
}

TEST_F(ReadAheadTest, TheDeviceFails_NothingIsWrong) {
  fixture_.Run([&](Region& region) {
    ReadOne(region, 3000);
    fixture_.device().InjectFault([](const BlockIo& io) { return io.offset == 3001 * kPageSize ? 0 : EIO; });
    ReadOne(region, 3001);
    Settle();
    fixture_.device().InjectFault(nullptr);
    EXPECT_FALSE(Present(3002));
    ReadOne(region, 3002);
  });
}

class OtherKindTest : public ReadAheadTest {
 protected:
  OtherKindTest() : ReadAheadTest({.pages = kPages, .dram_ratio = 0.5, .kind = driver::RegionKind::kRpcTiering}) {}
};

TEST_F(OtherKindTest, LoadsNothing) {
  const uint64_t bytes = fixture_.Count("ssd_read_bytes_total");
  uint64_t absent = 0;
  fixture_.Run([&](Region& region) {
    Bytes sink;
    for (uint64_t page = 0; page < kPages; page += 1 + page % 100 / 99 * 100) {  // a hundred in a row, then not
      absent += Present(page) ? 0 : 1;
      EXPECT_TRUE(region.ReadPages({page * kPageSize}, kPageSize, {}, sink).ok());
    }
    Settle();
  });
  EXPECT_GT(absent, 0u);
  EXPECT_LE(fixture_.Count("ssd_read_bytes_total") - bytes, absent * kPageSize);
}

}  // namespace
}  // namespace termfs::tlib::server
