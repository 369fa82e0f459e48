// SPDX-License-Identifier: Apache-2.0
//
// The kinds of region that TeRM is compared with are what they are said to be.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/unit/tlib/server_storage/region_fixture.h"
#include "tests/unit/tlib/server_storage/temp_folder.h"

namespace termfs::tlib::server {
namespace {

using driver::RegionKind;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

class Nowhere final : public PieceSink {
 public:
  Status Take(std::span<const Piece>) override { return Status::Ok(); }
};

RegionOptions FilesOf(const TempFolder& folder, RegionKind kind) {
  RegionOptions options;
  options.kind = kind;
  options.pages = 500;
  options.dram_ratio = 0.1;
  options.device = folder.path() + "/region-" + std::string(driver::ToString(kind));
  options.written_log = options.device + ".written";
  return options;
}

// VmFlags of this process's mapping of the file, as in proc(5); empty when there is none.
std::string MappingFlags(const std::string& path) {
  std::ifstream maps("/proc/self/smaps");
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    found |= line.find(" " + path) != std::string::npos;
    if (found && line.starts_with("VmFlags:")) {
      return line + " ";
    }
  }
  return "";
}

TEST(Rivals, OdpAndRpc_TakePageFaultsOfOnePageEach) {
  TempFolder folder;
  for (const RegionKind kind : {RegionKind::kOdp, RegionKind::kRpc}) {
    const RegionOptions options = FilesOf(folder, kind);
    ASSERT_TRUE(Region::Format(options, nullptr).ok());
    const auto devices = OpenRegionDevices(options);
    ASSERT_TRUE(devices.ok()) << devices.status().ToString();
    const std::string flags = MappingFlags(options.device);
    EXPECT_NE(flags.find(" sh "), std::string::npos) << flags;
    EXPECT_NE(flags.find(" rr "), std::string::npos) << flags;  // MADV_RANDOM
  }
  for (const RegionKind kind : {RegionKind::kRpcBuffer, RegionKind::kRpcDirect, RegionKind::kTerm}) {
    const RegionOptions options = FilesOf(folder, kind);
    ASSERT_TRUE(Region::Format(options, nullptr).ok());
    const auto devices = OpenRegionDevices(options);
    ASSERT_TRUE(devices.ok()) << devices.status().ToString();
    EXPECT_EQ(MappingFlags(options.device), "");
  }
}

TEST(Rivals, OdpAndRpc_KeepTheirSize) {
  TempFolder folder;
  for (const RegionKind kind : {RegionKind::kOdp, RegionKind::kRpc}) {
    RegionOptions options = FilesOf(folder, kind);
    options.max_pages = 1000;
    ASSERT_TRUE(Region::Format(options, nullptr).ok());
    // A change of the size that a crash cut short.
    std::filesystem::resize_file(options.device, std::filesystem::file_size(options.device) + 100 * kPageSize);
    TaskRunner runner;
    MetricsRegistry metrics;
    driver::FakeNic nic;
    auto opened = Region::Open(options, {.nic = nic, .domain = nic, .metrics = metrics, .spawn = runner.spawner()});
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    runner.Run([&] {
      EXPECT_TRUE((*opened)->Start(nullptr).ok());
      EXPECT_EQ((*opened)->CheckGrowth(600).code(), ENOTSUP);
      EXPECT_EQ((*opened)->CheckShrink().code(), ENOTSUP);
      EXPECT_TRUE((*opened)->Stop().ok());
    });
  }
}

// A mapping can be read at any alignment, but a frame holds a whole page.
TEST(Rivals, Odp_ReadOfAPartOfAnAbsentPage_AdmitsAllOfIt) {
  RegionFixture fixture({.pages = 64, .dram_ratio = 0.5, .kind = RegionKind::kOdp});
  fixture.Run([&](Region& region) {
    EXPECT_TRUE(region.Write({0}, std::vector(64 * kPageSize, std::byte{6})).ok());
    const PageRange all{.first = {0}, .count = 64};
    EXPECT_TRUE(region.Flush({&all, 1}).ok());
    const uint64_t before = fixture.Count("promotions_total");
    Nowhere sink;
    for (uint64_t page = 0; page < 64; page++) {
      EXPECT_TRUE(region.ReadPages({page * kPageSize + 1000}, 100, {}, sink).ok());
      const std::byte* const frame = fixture.term().Published({page});
      if (frame != nullptr) {
        EXPECT_EQ(std::count(frame, frame + kPageSize, std::byte{6}), static_cast<int64_t>(kPageSize)) << page;
      }
    }
    EXPECT_GT(fixture.Count("promotions_total"), before);
  });
}

TEST(Rivals, OdpDelay_FaultWaitsAndTheWorkerDoesNot) {
  constexpr milliseconds kDelay{200};
  RegionFixture fixture({.pages = 64, .dram_ratio = 0.5, .kind = RegionKind::kOdp, .odp_delay = kDelay},
                        std::make_shared<TaskRunner>(1));
  fixture.Run([&](Region&) {
    const auto begin = steady_clock::now();
    fixture.term().RaiseFault({3});
    uint64_t turns = 0;
    while (fixture.term().Published({3}) == nullptr) {
      turns++;
      Task::Yield();
    }
    EXPECT_GE(steady_clock::now() - begin, kDelay);
    EXPECT_GT(turns, 10U);
  });
  EXPECT_EQ(fixture.Count("faults_total"), 1U);
}

TEST(Rivals, OdpDelay_OutOfRange_IsEinval) {
  TempFolder folder;
  for (const auto delay : {milliseconds(-1), milliseconds(1001)}) {
    RegionOptions options = FilesOf(folder, RegionKind::kOdp);
    options.odp_delay = delay;
    EXPECT_EQ(Region::Format(options, nullptr).code(), EINVAL);
  }
}

// All accesses come by RPC. Half of them go to a hot set half as large as the tier, which came last; the rest, to seven
// times as many pages, is enough to drive a hot page out now and then where only recency counts.
class HotSetTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kPages = 1024;
  static constexpr uint64_t kHot = 128;
  static constexpr uint64_t kFirstHot = kPages - kHot;

  void Start(FrameChoice choice) {
    fixture_ = std::make_unique<RegionFixture>(
        RegionSetup{.pages = kPages, .dram_ratio = 0.25, .kind = RegionKind::kRpcTiering, .choice = choice});
    fixture_->Run([&](Region& region) {
      EXPECT_TRUE(region.Write({0}, std::vector(kPages * kPageSize, std::byte{3})).ok());
      const PageRange all{.first = {0}, .count = kPages};
      EXPECT_TRUE(region.Flush({&all, 1}).ok());
      for (uint64_t page = 0; page < kFirstHot; page++) {
        ReadOne(region, page);
      }
    });
  }
  void ReadOne(Region& region, uint64_t page) {
    Nowhere sink;
    const Status read = region.ReadPages({page * kPageSize}, kPageSize, {}, sink);
    EXPECT_TRUE(read.ok()) << read.ToString();
  }
  void ReadMixed(Region& region) {
    for (uint64_t i = 0; i < kPages; i++) {
      ReadOne(region, random_.Below(2) == 0 ? kFirstHot + random_.Below(kHot) : random_.Below(kFirstHot));
    }
  }
  // How many of the hot pages are not served from a frame.
  uint64_t Misses(Region& region) {
    const uint64_t before = fixture_->Count("frame_read_pages_total");
    for (uint64_t page = kFirstHot; page < kPages; page++) {
      ReadOne(region, page);
    }
    return kHot - (fixture_->Count("frame_read_pages_total") - before);
  }
  void RunMixed(const std::function<bool(uint64_t misses)>& go_on) {
    fixture_->Run([&](Region& region) {
      do {
        ReadMixed(region);
      } while (go_on(Misses(region)));
    });
  }

  bool AllHotComeIntoFrames() {
    const auto deadline = steady_clock::now() + std::chrono::seconds(60);
    bool all = false;
    RunMixed([&](uint64_t misses) {
      all = misses == 0;
      return !all && steady_clock::now() < deadline;
    });
    return all;
  }

  std::unique_ptr<RegionFixture> fixture_;
  Random random_{1};
};

TEST_F(HotSetTest, RpcTieringByHeat_ComesIntoFramesAndStays) {
  Start(FrameChoice::kHeat);
  EXPECT_TRUE(AllHotComeIntoFrames());
  uint64_t misses = 0;
  int passes = 0;
  RunMixed([&](uint64_t more) {
    misses += more;
    return ++passes < 60;
  });
  EXPECT_LT(misses, 60 * kHot / 20);  // only what is counted while it is in a frame stays hot
}

TEST_F(HotSetTest, RpcTieringStatic_IsNot) {
  Start(FrameChoice::kStatic);
  int passes = 0;
  RunMixed([&](uint64_t misses) {
    EXPECT_EQ(misses, kHot);  // each of them, for ever
    return ++passes < 20;
  });
}

TEST_F(HotSetTest, RpcTieringByRecency_IsNotAlways) {
  Start(FrameChoice::kRecent);
  int passes = 0;
  RunMixed([&](uint64_t misses) {
    EXPECT_GT(misses, 0U);
    return ++passes < 20;
  });
}

TEST_F(HotSetTest, RpcTiering_ChoiceChangesWhileItIsServed) {
  Start(FrameChoice::kStatic);
  EXPECT_TRUE(fixture_->region().SetFrameChoice(FrameChoice::kHeat).ok());
  EXPECT_TRUE(AllHotComeIntoFrames());
}

}  // namespace
}  // namespace termfs::tlib::server
