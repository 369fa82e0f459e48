// SPDX-License-Identifier: Apache-2.0
#include "mount/stats_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "base/metrics.h"

namespace termfs::mount {
namespace {

constexpr uint64_t kMicrosecond = 1000;

std::vector<std::string> Lines(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
  }
  return lines;
}

std::vector<std::string> WordsOf(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

// The word below a title; of titles that are there several times, the one of that rank.
std::string Below(const StatsSample& before, const StatsSample& now, const std::string& title, int rank = 0) {
  const std::vector<std::string> titles = WordsOf(Lines(StatsHeader(now)).at(1));
  const std::vector<std::string> words = WordsOf(StatsLine(before, now));
  EXPECT_EQ(titles.size(), words.size());
  for (size_t i = 0; i < titles.size(); i++) {
    if (titles[i] == title && rank-- == 0) {
      return words[i];
    }
  }
  return "no such column";
}

void Record(Counted& counted, const std::string& name, uint64_t nanoseconds, uint64_t times = 1) {
  counted.histograms[name][static_cast<uint32_t>(Histogram::BucketOf(nanoseconds))] += times;
}

class StatsView : public testing::Test {
 protected:
  StatsView() {
    before.of_mount = now.of_mount = true;
    now.when = before.when + std::chrono::seconds(2);
  }
  void OfServer() {
    before.of_mount = now.of_mount = false;
    before.of_server = now.of_server = true;
  }
  StatsSample before;
  StatsSample now;
};

}  // namespace

TEST_F(StatsView, RatesAreOfTheInterval) {
  before.mount.metrics = {{"fs_reads_total", 1'000'000}, {"fs_write_bytes_total", 5}, {"fs_metadata_total", 10}};
  now.mount.metrics = {
      {"fs_reads_total", 1'000'500}, {"fs_write_bytes_total", 5 + (40 << 20)}, {"fs_metadata_total", 16}};
  EXPECT_EQ(Below(before, now, "r/s"), "250");
  EXPECT_EQ(Below(before, now, "bytes", 1), "20M");
  EXPECT_EQ(Below(before, now, "m/s"), "3");
  EXPECT_EQ(Below(before, now, "w/s"), "-") << "not counted by this source";
  now.mount.metrics["fs_metadata_total"] = 4;  // started again
  EXPECT_EQ(Below(before, now, "m/s"), "2");
}

TEST_F(StatsView, PercentilesAreOfTheInterval) {
  Record(before.mount, "fuse_read", 900'000 * kMicrosecond, 10'000);
  now.mount = before.mount;
  EXPECT_EQ(Below(before, now, "p99"), "-") << "nothing has ended";
  Record(now.mount, "fuse_read", 15 * kMicrosecond, 98);
  Record(now.mount, "fuse_read", 1900 * kMicrosecond, 2);
  EXPECT_EQ(Below(before, now, "p50"), "15us");
  EXPECT_EQ(Below(before, now, "p99"), "1.9ms");
  EXPECT_EQ(Below(before, now, "p50", 1), "-") << "those of writes";
}

TEST_F(StatsView, ShareOfHits) {
  now.mount.metrics = {{"read_hit_pages_total", 300}, {"rpc_read_pages_total", 100}};
  EXPECT_EQ(Below(before, now, "hit%"), "75");
  EXPECT_EQ(Below(before, now, "miss"), "50");
  EXPECT_EQ(Below(now, now, "hit%"), "-");
}

TEST_F(StatsView, ServerSumsUp) {
  OfServer();
  now.server.metrics = {
      {"rpc_reads_total", 10},       {"rpc_read_pages_total", 20},        {"fs_reads_total", 2},
      {"fs_read_bytes_total", 4096}, {"told_hit_pages_total", 7'000'000}, {"ssd_write_bytes_total", 4096}};
  Record(now.server, "rpc_read", 20 * kMicrosecond);
  Record(now.server, "fs_read", 40'000 * kMicrosecond);
  EXPECT_EQ(Below(before, now, "r/s"), "6");
  EXPECT_EQ(Below(before, now, "bytes"), "42K");
  EXPECT_EQ(Below(before, now, "p99"), "42ms");
  EXPECT_EQ(Below(before, now, "hits"), "3.5M");
  EXPECT_EQ(Below(before, now, "write"), "2.0K");
}

TEST_F(StatsView, FitsAHundredColumns) {
  const auto fill = [](Counted& counted) {
    for (const char* name :
         {"fs_reads_total", "fs_read_bytes_total", "read_hit_pages_total", "rpc_read_pages_total", "fs_writes_total",
          "fs_write_bytes_total", "fs_metadata_total", "told_hit_pages_total", "rpc_reads_total", "fs_metadata_count",
          "promotions_total", "evictions_total", "ssd_read_bytes_total", "ssd_write_bytes_total"}) {
      counted.metrics[name] = 199'998;
    }
    for (const char* name : {"fuse_read", "fuse_write", "fs_metadata", "rpc_read", "fs_read", "fs_write"}) {
      Record(counted, name, 990 * kMicrosecond);
    }
  };
  fill(now.mount);
  fill(now.server);
  now.mount.metrics["link_given_up"] = 1;
  now.mount.metrics["link_down_seconds"] = 99'999;
  for (const bool of_mount : {true, false}) {
    before.of_mount = now.of_mount = of_mount;
    for (const std::string& line : Lines(StatsHeader(now) + StatsLine(before, now))) {
      EXPECT_LE(line.size(), 100U) << line;
    }
    const std::vector<std::string> header = Lines(StatsHeader(now));
    EXPECT_EQ(WordsOf(header.at(1)).size(), WordsOf(StatsLine(before, now)).size());
  }
  EXPECT_THAT(Lines(StatsHeader(now)).at(0), testing::HasSubstr("- writes -"));
}

TEST_F(StatsView, BusiestSessionsFirst) {
  OfServer();
  const auto session = [](uint64_t id, uint64_t reads, uint64_t hits) {
    fs::client::SessionStatus status;
    status.id = id;
    status.program = "mount";
    status.pid = static_cast<uint32_t>(1000 + id);
    status.traffic.reads = reads;
    status.traffic.hit_pages = hits;
    return status;
  };
  before.sessions = {session(1, 100, 0), session(2, 100, 0), session(3, 100, 5), session(9, 1, 1)};
  now.sessions = {session(1, 120, 0), session(2, 100, 0), session(3, 100, 9), session(4, 60, 0)};
  now.sessions[3].from = "[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:65535";
  const std::vector<std::string> lines = Lines(SessionsHeader() + SessionsLines(before, now));
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_THAT(lines[1], testing::HasSubstr("  [2001:db8"));
  EXPECT_EQ(WordsOf(lines[2]), (std::vector<std::string>{"1", "mount,", "pid", "1001", "0", "10", "0", "0", "0", "0"}));
  EXPECT_THAT(WordsOf(lines[3]), testing::Contains("1003"));
  EXPECT_EQ(WordsOf(lines[4]), (std::vector<std::string>{"1", "idle"}));
  for (const std::string& line : lines) {
    EXPECT_LE(line.size(), 100U) << line;
  }
}

TEST(ShortNumbers, FiveColumns) {
  EXPECT_EQ(ShortCount(std::nullopt), "-");
  EXPECT_EQ(ShortCount(0), "0");
  EXPECT_EQ(ShortCount(99'999), "99999");
  EXPECT_EQ(ShortCount(123'456), "123k");
  EXPECT_EQ(ShortCount(4.56e9), "4.6G");
  EXPECT_EQ(ShortBytes(0), "0");
  EXPECT_EQ(ShortBytes(512), "0.5K");
  EXPECT_EQ(ShortBytes(4096), "4.0K");
  EXPECT_EQ(ShortBytes(1023.6 * 1024), "1.0M");
  EXPECT_EQ(ShortBytes(double{100 << 20}), "100M");
  EXPECT_EQ(ShortTime(std::nullopt), "-");
  EXPECT_EQ(ShortTime(5'200), "5.2us");
  EXPECT_EQ(ShortTime(999'700), "1.0ms");
  EXPECT_EQ(ShortTime(998'000'000), "998ms");
  EXPECT_EQ(ShortTime(999'700'000), "1.0s");
  EXPECT_EQ(ShortTime(60'000'000'000), "60s");
}

TEST_F(StatsView, Json_HasSessionsWhereTheyAreAskedFor) {
  EXPECT_THAT(StatsJson(now), testing::Not(testing::HasSubstr("sessions")));
  now.of_sessions = true;
  EXPECT_THAT(StatsJson(now), testing::HasSubstr("\"sessions\":[]"));
}

}  // namespace termfs::mount
