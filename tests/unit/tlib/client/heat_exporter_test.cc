// SPDX-License-Identifier: Apache-2.0
#include "tlib/client/heat_exporter.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "driver/softnic/softnic.h"

namespace termfs::tlib::client {
namespace {

class HeatExporterTest : public testing::Test {
 protected:
  void SetUp() override {
    nic_ = driver::CreateSoftNic().value();
    domain_ = nic_->CreateProtectionDomain().value();
    Make(1000);
  }
  void Make(uint64_t pages) { exporter_ = HeatExporter::Create(*nic_, *domain_, pages).value(); }
  // What a server would see.
  std::map<uint32_t, uint32_t> Exported() {
    const auto* header = reinterpret_cast<const HeatHeader*>(exporter_->memory().data());
    const auto* entries = reinterpret_cast<const HeatEntry*>(exporter_->memory().data() +
                                                             HeatBufferOffset(header->sequence, header->capacity));
    std::map<uint32_t, uint32_t> counts;
    for (uint32_t i = 0; i < header->count[header->sequence % 2]; i++) {
      counts[entries[i].page] += entries[i].accesses;
    }
    return counts;
  }
  uint64_t Sequence() { return reinterpret_cast<const HeatHeader*>(exporter_->memory().data())->sequence; }

  std::unique_ptr<driver::Nic> nic_;
  std::unique_ptr<driver::ProtectionDomain> domain_;
  std::unique_ptr<HeatExporter> exporter_;
};

TEST_F(HeatExporterTest, Publish_SumsRingsAndBeginsAnew) {
  const auto a = exporter_->AddRing();
  const auto b = exporter_->AddRing();
  for (int i = 0; i < 5; i++) {
    a->Push(7);
    b->Push(7);
    b->Push(999);
  }
  EXPECT_EQ(exporter_->Drain(), 10U);  // of the fuller ring
  exporter_->Publish({});
  EXPECT_EQ(Sequence(), 1U);
  EXPECT_EQ(Exported(), (std::map<uint32_t, uint32_t>{{7, 10}, {999, 5}}));
  a->Push(0);
  exporter_->Drain();
  exporter_->Publish({});
  EXPECT_EQ(Sequence(), 2U);
  EXPECT_EQ(Exported(), (std::map<uint32_t, uint32_t>{{0, 1}}));
  EXPECT_EQ(exporter_->Drain(), 0U);
  exporter_->Publish({});  // nothing new
  EXPECT_EQ(Sequence(), 2U);
}

TEST_F(HeatExporterTest, Publish_TellsWhatTotalsHaveGrownBy) {
  const auto totals = [this] {
    const auto* header = reinterpret_cast<const HeatHeader*>(exporter_->memory().data());
    return std::pair(header->hit_pages[header->sequence % 2], header->missed_pages[header->sequence % 2]);
  };
  exporter_->Publish({.hit_pages = 10, .missed_pages = 3});
  EXPECT_EQ(Sequence(), 1U);
  EXPECT_EQ(totals(), std::pair(10U, 3U));
  EXPECT_TRUE(Exported().empty());
  exporter_->Publish({.hit_pages = 10, .missed_pages = 5});  // misses alone
  EXPECT_EQ(Sequence(), 2U);
  EXPECT_EQ(totals(), std::pair(0U, 2U));
  exporter_->Publish({.hit_pages = 10, .missed_pages = 5});  // nothing new
  EXPECT_EQ(Sequence(), 2U);
  exporter_->Publish({.hit_pages = 9, .missed_pages = 5});  // a sum that was taken at a bad moment
  EXPECT_EQ(Sequence(), 2U);
  exporter_->Publish({.hit_pages = 9, .missed_pages = 6});
  EXPECT_EQ(totals(), std::pair(0U, 1U));
  exporter_->Publish({.hit_pages = 11, .missed_pages = 6});
  EXPECT_EQ(totals(), std::pair(1U, 0U));
  exporter_->Publish({.hit_pages = 11 + (uint64_t{1} << 40), .missed_pages = 6});
  EXPECT_EQ(totals(), std::pair(UINT32_MAX, 0U));
}

TEST_F(HeatExporterTest, Drain_MorePagesThanFitLeavesTheRestOut) {
  Make(4);
  const auto ring = exporter_->AddRing();
  for (uint32_t page = 0; page < 100; page++) {
    ring->Push(page);
    ring->Push(page);
  }
  exporter_->Drain();
  exporter_->Publish({});
  EXPECT_EQ(Exported(), (std::map<uint32_t, uint32_t>{{0, 2}, {1, 2}, {2, 2}, {3, 2}}));
}

TEST_F(HeatExporterTest, Push_FullRingDropsAndGoesOn) {
  const auto ring = exporter_->AddRing();
  for (uint32_t i = 0; i < AccessRing::kEntries + 100; i++) {
    ring->Push(1);
  }
  exporter_->Drain();
  exporter_->Publish({});
  EXPECT_EQ(Exported(), (std::map<uint32_t, uint32_t>{{1, AccessRing::kEntries}}));
  ring->Push(2);
  exporter_->Drain();
  exporter_->Publish({});
  EXPECT_EQ(Exported(), (std::map<uint32_t, uint32_t>{{2, 1}}));
}

TEST_F(HeatExporterTest, SetSampling_CountsSomeForAll) {
  const auto before = exporter_->AddRing();
  exporter_->SetSampling(16);
  const auto after = exporter_->AddRing();
  constexpr uint32_t kPushes = 100'000;
  for (uint32_t i = 0; i < kPushes; i++) {
    before->Push(i % 4);  // in a pattern: each page is met all the same
    after->Push(4);
  }
  EXPECT_LT(exporter_->Drain(), kPushes / 10);
  exporter_->Publish({});
  const auto counts = Exported();
  for (uint32_t page = 0; page < 4; page++) {
    EXPECT_NEAR(counts.at(page), kPushes / 4, kPushes / 16) << page;
  }
  EXPECT_NEAR(counts.at(4), kPushes, kPushes / 8);
  exporter_->SetSampling(1);
  for (uint32_t i = 0; i < 1000; i++) {
    before->Push(5);
  }
  exporter_->Drain();
  exporter_->Publish({});
  EXPECT_NEAR(Exported().at(5), 1000, 31);  // what was to be passed over
}

TEST_F(HeatExporterTest, Crowded_WhenOthersMightFindNoRoom) {
  const auto fill = [this](uint64_t pages) {
    Make(pages);
    const auto ring = exporter_->AddRing();
    for (uint32_t page = 0; page <= std::min<uint64_t>(pages, kMaxHeatEntries) / 2; page++) {
      EXPECT_FALSE(exporter_->crowded());
      ring->Push(page);
      exporter_->Drain();
    }
  };
  fill(10);
  EXPECT_FALSE(exporter_->crowded());
  fill(kMaxHeatEntries + 1);
  EXPECT_TRUE(exporter_->crowded());
  exporter_->Publish({});
  EXPECT_FALSE(exporter_->crowded());
}

// The table in which pages are summed grows with them, and what was counted before stays.
TEST_F(HeatExporterTest, Count_ManyPagesWithTheTableTheyNeed) {
  Make(100'000);
  const auto ring = exporter_->AddRing();
  std::map<uint32_t, uint32_t> pushed;
  for (uint32_t round = 0; round < 3; round++) {
    for (uint32_t i = 0; i < 10'000; i++) {
      const uint32_t page = i * 7 % 90'001;
      ring->Push(page);
      pushed[page]++;
    }
    exporter_->Drain();
  }
  EXPECT_TRUE(exporter_->Publish({}));
  EXPECT_EQ(Exported(), pushed);
  ring->Push(3);
  exporter_->Drain();
  EXPECT_TRUE(exporter_->Publish({}));
  EXPECT_EQ(Exported(), (std::map<uint32_t, uint32_t>{{3, 1}}));
  EXPECT_FALSE(exporter_->Publish({}));
}

TEST_F(HeatExporterTest, AwaitAccess_TheNextAccessRingsOnce) {
  ActivityBell bell;
  ASSERT_TRUE(bell.Create().ok());
  const auto early = exporter_->AddRing();
  early->Push(1);
  bell.Await();
  exporter_->AwaitAccess(bell);
  const auto late = exporter_->AddRing();
  EXPECT_FALSE(bell.rung());
  late->Push(2);
  EXPECT_TRUE(bell.rung());
  uint64_t rings = 0;
  EXPECT_EQ(read(bell.fd(), &rings, sizeof(rings)), ssize_t{sizeof(rings)});
  early->Push(3);
  late->Push(2);
  EXPECT_EQ(read(bell.fd(), &rings, sizeof(rings)), -1) << "there is no waiter any more";
  exporter_->SetSampling(1);
  bell.Silence();
  EXPECT_EQ(exporter_->Drain(), 2U);
  exporter_->Publish({});
  EXPECT_EQ(Exported(), (std::map<uint32_t, uint32_t>{{1, 1}, {2, 2}, {3, 1}}));
  exporter_->SetSampling(4);
  exporter_->AwaitAccess(bell);
  exporter_->SetSampling(4);
  EXPECT_EQ(early->sampling(), 4U);
}

TEST_F(HeatExporterTest, Push_BesideDrainLosesNothingThatFits) {
  const auto ring = exporter_->AddRing();
  std::atomic<bool> done{false};
  std::thread pusher([&] {
    for (uint32_t i = 0; i < AccessRing::kEntries - 1; i++) {
      ring->Push(i % 500);
    }
    done = true;
  });
  while (!done) {
    exporter_->Drain();
  }
  pusher.join();
  exporter_->Drain();
  exporter_->Publish({});
  uint64_t sum = 0;
  for (const auto& [page, accesses] : Exported()) {
    sum += accesses;
  }
  EXPECT_EQ(sum, AccessRing::kEntries - 1);
}

}  // namespace
}  // namespace termfs::tlib::client
