// SPDX-License-Identifier: Apache-2.0
//
// Reads of a region by clients: what they READ, what they find absent and how, and what becomes of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "tests/unit/tlib/server/server_fixture.h"
#include "tlib/rpc/heat.h"

namespace termfs::tlib {
namespace {

using client::BitmapMode;
using std::chrono::milliseconds;

TEST_F(ServerTest, Read_OfPagesInFramesIsOneSided) {
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path()).ok());
  const auto data = RandomBytes(100'000, 1);
  ASSERT_TRUE(client.Write(12345, data).ok());
  std::vector<std::byte> back(data.size());
  ASSERT_TRUE(client.Read(12345, back).ok());
  EXPECT_EQ(back, data);
  const auto metrics = client.session->Metrics();
  EXPECT_EQ(MetricOf(metrics, "rpc_reads_total"), 0U);
  EXPECT_EQ(MetricOf(metrics, "read_hit_pages_total"), 25U);
  EXPECT_EQ(MetricOf(volume_.server().Metrics(), "rpc_reads_total"), 0U);
}

TEST_F(ServerTest, Read_OfAbsentPagesIsFoundByTheBitmap) {
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path()).ok());
  std::vector<std::byte> back(8192, std::byte{1});
  ASSERT_TRUE(client.Read(0, back).ok());
  EXPECT_EQ(back, std::vector<std::byte>(8192));
  const auto metrics = client.session->Metrics();
  EXPECT_EQ(MetricOf(metrics, "rpc_reads_total"), 1U);
  EXPECT_EQ(MetricOf(metrics, "rpc_read_pages_total"), 2U);
  EXPECT_EQ(MetricOf(metrics, "absent_by_bitmap_pages_total"), 2U);
  EXPECT_EQ(MetricOf(metrics, "absent_by_pattern_pages_total"), 0U);
}

TEST_F(ServerTest, Read_OfAbsentPagesIsFoundByThePattern) {
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path(), {.bitmap = BitmapMode::kOff}).ok());
  std::vector<std::byte> back(8192, std::byte{1});
  ASSERT_TRUE(client.Read(100, back).ok());
  EXPECT_EQ(back, std::vector<std::byte>(8192));
  const auto metrics = client.session->Metrics();
  EXPECT_EQ(MetricOf(metrics, "rpc_reads_total"), 1U);
  EXPECT_EQ(MetricOf(metrics, "absent_by_bitmap_pages_total"), 0U);
  EXPECT_EQ(MetricOf(metrics, "absent_by_pattern_pages_total"), 3U);
}

TEST_F(ServerTest, Read_BatchMixesHitsAndMisses) {
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path(), {.bitmap = BitmapMode::kOff}).ok());
  const auto data = RandomBytes(64 * kPageSize, 2);
  ASSERT_TRUE(client.Write(0, data).ok());
  std::vector<client::ReadRequest> reads;
  for (uint32_t i = 0; i < 128; i++) {  // more than credits and more than a window; every other page is absent
    reads.push_back({.offset = {(i % 2 == 0 ? i / 2 : 512 + i / 2) * kPageSize},
                     .length = static_cast<uint32_t>(kPageSize),
                     .destination = client.channel->buffer().data() + i * kPageSize});
  }
  const Status status = client.channel->Read(reads);
  ASSERT_TRUE(status.ok()) << status.ToString();
  const std::vector<std::byte> zeros(kPageSize);
  for (uint32_t i = 0; i < 128; i++) {
    const std::byte* const expected = i % 2 == 0 ? data.data() + i / 2 * kPageSize : zeros.data();
    EXPECT_EQ(std::memcmp(reads[i].destination, expected, kPageSize), 0) << i;
  }
  EXPECT_EQ(MetricOf(client.session->Metrics(), "rpc_reads_total"), 64U);
}

TEST_F(ServerTest, Read_PulledBitmapLearnsFromReplies) {
  TestClient client;
  ASSERT_TRUE(
      client.Connect(volume_.path(), {.bitmap = BitmapMode::kPulled, .pull_period = std::chrono::hours(1)}).ok());
  std::vector<std::byte> page(kPageSize);
  ASSERT_TRUE(client.Read(0, page).ok());  // the first pull said: absent
  EXPECT_EQ(MetricOf(client.session->Metrics(), "absent_by_bitmap_pages_total"), 1U);
  // Once the page is in a frame the next reply says so, and the one after is a one-sided hit.
  ASSERT_TRUE(client.Write(0, page).ok());
  ASSERT_TRUE(client.Read(0, page).ok());
  ASSERT_TRUE(client.Read(0, page).ok());
  const auto metrics = client.session->Metrics();
  EXPECT_EQ(MetricOf(metrics, "rpc_reads_total"), 2U);
  EXPECT_EQ(MetricOf(metrics, "read_hit_pages_total"), 1U);
  EXPECT_EQ(MetricOf(metrics, "bitmap_pulls_total"), 1U);
}

TEST_F(ServerTest, Read_PulledBitmapOfALargeRegionComesInTurns) {
  TestClient client;
  const client::SessionOptions three_pieces = {
      .bitmap = BitmapMode::kPulled, .pull_period = milliseconds(5), .pull_pages = 384};
  ASSERT_TRUE(client.Connect(volume_.path(), three_pieces).ok());
  TestClient writer;
  ASSERT_TRUE(writer.Connect(volume_.path()).ok());
  const auto data = RandomBytes(kPageSize, 4);
  ASSERT_TRUE(writer.Write(1000 * kPageSize, data).ok());  // in the last piece
  const auto count = [&](const char* name) { return MetricOf(client.session->Metrics(), name); };
  const uint64_t pulls = count("bitmap_pulls_total");
  ASSERT_TRUE(Eventually([&] { return count("bitmap_pulls_total") >= pulls + 4; }));  // one may have been under way
  std::vector<std::byte> page(kPageSize);
  ASSERT_TRUE(client.Read(1000 * kPageSize, page).ok());
  EXPECT_EQ(page, data);
  EXPECT_EQ(count("rpc_reads_total"), 0U);
  const uint64_t bytes = count("bitmap_pulled_bytes_total");
  // The whole region's at first, and never again at once.
  EXPECT_LE(bytes, 1024 / 8 + (count("bitmap_pulls_total") - 1) * 384 / 8);
}

TEST_F(ServerTest, Read_OutsideOfRegionOrBufferIsRefused) {
  TestClient client;
  ASSERT_TRUE(client.Connect(volume_.path()).ok());
  std::byte* const buffer = client.channel->buffer().data();
  const uint64_t end = 1024 * kPageSize;
  for (const client::ReadRequest& read : std::vector<client::ReadRequest>{
           {.offset = {end}, .length = 1, .destination = buffer},
           {.offset = {end - 1}, .length = 2, .destination = buffer},
           {.offset = {UINT64_MAX - 1}, .length = 4, .destination = buffer},
           {.offset = {0}, .length = 0, .destination = buffer},
           {.offset = {0}, .length = kMaxTransfer + 1, .destination = buffer},
           {.offset = {0}, .length = 1, .destination = buffer - 1},
           {.offset = {0}, .length = 8192, .destination = buffer + client.channel->buffer().size() - 8191},
           {.offset = {0}, .length = 1, .destination = nullptr}}) {
    EXPECT_EQ(client.channel->Read({&read, 1}).code(), EINVAL) << read.offset.value << " " << read.length;
  }
}

// Reads the last `pages` pages of an ODP region; most are absent.
void ReadByFaults(milliseconds delay, uint64_t pages) {
  TestVolume volume({.kind = driver::RegionKind::kOdp, .pages = 256, .dram_ratio = 0.1, .odp_delay = delay});
  ASSERT_TRUE(volume.Format().ok());
  ASSERT_TRUE(volume.Start().ok());
  TestClient client;
  ASSERT_TRUE(client.Connect(volume.path()).ok());
  std::vector<std::byte> page(kPageSize);
  for (uint64_t i = 0; i < 256; i++) {
    std::fill(page.begin(), page.end(), static_cast<std::byte>(i + 1));
    ASSERT_TRUE(client.Write(i * kPageSize, page).ok());
  }
  const auto faults = [&] { return MetricOf(volume.server().Metrics(), "faults_total"); };
  const uint64_t at_first = faults();
  for (uint64_t i = 256 - pages; i < 256; i++) {
    const uint64_t before = faults();
    const auto begin = std::chrono::steady_clock::now();
    const Status read = client.Read(i * kPageSize, page);
    const auto took = std::chrono::steady_clock::now() - begin;
    ASSERT_TRUE(read.ok()) << read.ToString();
    EXPECT_EQ(page, std::vector<std::byte>(kPageSize, static_cast<std::byte>(i + 1)));
    if (faults() != before) {
      EXPECT_GE(took, delay) << i;
    }
  }
  EXPECT_GT(faults(), at_first);
}

TEST(Server, OdpDelay_EachFaultTakesAsLong) { ReadByFaults(milliseconds(50), 8); }
TEST(Server, Odp_NoDelay_EveryPageComes) { ReadByFaults(milliseconds(0), 256); }

TEST(Server, Heat_PromotesWhatClientsRead) {
  TestVolume volume({.pages = 1024, .dram_ratio = 0.1, .sample_period = milliseconds(20)});
  ASSERT_TRUE(volume.Format().ok());
  ASSERT_TRUE(volume.Start().ok());
  TestClient client;
  ASSERT_TRUE(client.Connect(volume.path(), {.heat_period = milliseconds(20)}).ok());
  std::vector<std::byte> page(kPageSize);
  EXPECT_TRUE(Eventually([&] {
    for (uint64_t i = 0; i < 50; i++) {
      if (!client.Read(i * kPageSize, page).ok()) {
        return false;
      }
    }
    const auto metrics = volume.server().Metrics();
    return MetricOf(metrics, "heat_reads_total") > 2 && MetricOf(metrics, "pages_present") >= 50;
  }));
}

TEST(Server, Heat_OfALargeRegion_IsTaken) {
  TestVolume volume({.pages = 2 * uint64_t{kMaxHeatEntries}, .dram_ratio = 0.001, .sample_period = milliseconds(20)});
  ASSERT_TRUE(volume.Format().ok());
  ASSERT_TRUE(volume.Start().ok());
  TestClient client;
  const Status connected = client.Connect(volume.path(), {.heat_period = milliseconds(20)});
  ASSERT_TRUE(connected.ok()) << connected.ToString();
  std::vector<std::byte> page(kPageSize);
  EXPECT_TRUE(Eventually([&] {
    EXPECT_TRUE(client.Read(0, page).ok());
    return MetricOf(volume.server().Metrics(), "told_hit_pages_total") > 0;
  }));
}

// Neither of the two periods waits for the other. Who looks but once in a sample period sees two of five publications.
TEST(Server, Heat_EveryPublicationIsMet) {
  constexpr uint64_t kPages = 50;
  TestVolume volume({.pages = kPages, .dram_ratio = 1, .sample_period = milliseconds(500)});
  ASSERT_TRUE(volume.Format().ok());
  ASSERT_TRUE(volume.Start().ok());
  TestClient client;
  ASSERT_TRUE(client.Connect(volume.path(), {.heat_period = milliseconds(200)}).ok());
  std::vector<std::byte> page(kPageSize);
  uint64_t reads = 0;
  const auto end = std::chrono::steady_clock::now() + milliseconds(3000);
  for (uint64_t i = 0; std::chrono::steady_clock::now() < end; i++) {
    ASSERT_TRUE(client.Read(i % kPages * kPageSize, page).ok());
    std::this_thread::sleep_for(milliseconds(1));
    reads++;
  }
  EXPECT_TRUE(Eventually([&] {
    const auto metrics = volume.server().Metrics();
    const uint64_t told = MetricOf(metrics, "told_hit_pages_total") + MetricOf(metrics, "told_missed_pages_total");
    return told > reads * 7 / 10 && told <= reads + 1;
  }));
}

}  // namespace
}  // namespace termfs::tlib
