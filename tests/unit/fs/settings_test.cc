// SPDX-License-Identifier: Apache-2.0
#include "fs/server/settings.h"

#include <gtest/gtest.h>

#include "driver/softnic/page_table.h"

namespace termfs::fs::server {

namespace {
std::string ErrorOf(const std::string& text) {
  const auto parsed = ParseSettings("capacity = 16777216\n" + text, "t.toml");
  return parsed.ok() ? "" : parsed.status().ToString();
}
}  // namespace

TEST(Settings, RoundTrip) {
  VolumeSettings s;
  s.capacity_bytes = uint64_t{3} << 30;
  s.dram_ratio = 0.37;
  s.device = "/dev/\"odd\" name";
  s.kind = "rpc_tiering";
  s.promoter = "recent";
  s.workers = 3;
  s.metadata_threads = 9;
  s.max_sessions = 77;
  s.metadata_memory_bytes = uint64_t{77} << 20;
  s.sample_period_ms = 250;
  s.listen = "[::1]:4000";
  const auto read = ParseSettings(FormatSettings(s), "t.toml");
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->capacity_bytes, s.capacity_bytes);
  EXPECT_EQ(read->dram_ratio, s.dram_ratio);
  EXPECT_EQ(read->device, s.device);
  EXPECT_EQ(read->kind, s.kind);
  EXPECT_EQ(read->promoter, s.promoter);
  EXPECT_EQ(read->workers, s.workers);
  EXPECT_EQ(read->metadata_threads, s.metadata_threads);
  EXPECT_EQ(read->max_sessions, s.max_sessions);
  EXPECT_EQ(read->metadata_memory_bytes, s.metadata_memory_bytes);
  EXPECT_EQ(read->sample_period_ms, s.sample_period_ms);
  EXPECT_EQ(read->listen, s.listen);
}

TEST(Settings, Parse_NamesWhatIsWrong) {
  EXPECT_EQ(ErrorOf(""), "");
  EXPECT_NE(ErrorOf("dram-ration = 0.5").find("unknown key 'dram-ration'"), std::string::npos);
  EXPECT_NE(ErrorOf("dram-ratio = 0").find("dram-ratio must be"), std::string::npos);
  EXPECT_NE(ErrorOf("dram-ratio = nan").find("dram-ratio must be"), std::string::npos);
  EXPECT_NE(ErrorOf("dram-ratio = '0.5'").find("dram-ratio must be"), std::string::npos);
  EXPECT_NE(ErrorOf("kind = 'magic'").find("kind must be"), std::string::npos);
  EXPECT_NE(ErrorOf("listen = 'host:99999'").find("listen must be"), std::string::npos);
  EXPECT_NE(ErrorOf("promoter = 1").find("promoter must be"), std::string::npos);
  EXPECT_NE(ErrorOf("workers = -1").find("workers must be"), std::string::npos);
  EXPECT_NE(ErrorOf("metadata-memory = 33554431").find("metadata-memory must be"), std::string::npos);
  EXPECT_NE(ErrorOf("metadata-memory = '1G'").find("metadata-memory must be"), std::string::npos);
  EXPECT_EQ(ErrorOf("metadata-memory = 33554432"), "");
  EXPECT_NE(ErrorOf("workers = 1.5").find("workers must be"), std::string::npos);
  EXPECT_NE(ErrorOf("workers = ").find("t.toml line 2"), std::string::npos);
  EXPECT_NE(ErrorOf("\xc9\xb5 = 1").find("line 2"), std::string::npos);
  EXPECT_NE(ErrorOf(std::string("[\0\0", 3)).find("line 2"), std::string::npos);
  EXPECT_NE(ErrorOf("[table]").find("line 2"), std::string::npos);
  EXPECT_NE(ErrorOf("workers = [1]").find("line 2"), std::string::npos);
  EXPECT_NE(ErrorOf("workers = 1\n\"a\" \xc9\xb5").find("line 3"), std::string::npos);
  EXPECT_EQ(ErrorOf("device = \"/dev/\xc3\xa4\\\"\" # \xc3\xa4"), "");
  EXPECT_NE(ErrorOf("device = 'relative'").find("device must be"), std::string::npos);
  EXPECT_FALSE(ParseSettings("capacity = 16777215", "t.toml").ok());
  EXPECT_FALSE(ParseSettings("capacity = 16777217", "t.toml").ok());
  EXPECT_FALSE(ParseSettings("capacity = 9223372036854775807", "t.toml").ok());
}

// A larger region could be formatted and then not be served.
TEST(Settings, Capacity_EndsWhereTheSoftwareRnicDoes) {
  constexpr uint64_t kMost = driver::softnic::kMaxPages << kPageBits;
  VolumeSettings s;
  s.capacity_bytes = kMost;
  EXPECT_TRUE(CheckSettings(s).ok());
  EXPECT_TRUE(ParseSettings("capacity = " + std::to_string(kMost), "t.toml").ok());
  s.capacity_bytes = kMost + kPageSize;
  EXPECT_EQ(CheckSettings(s).message(), "capacity must be from 16 MiB to just under 4 TiB, in whole pages of 4 KiB");
  EXPECT_EQ(ParseSettings("capacity = " + std::to_string(s.capacity_bytes), "t.toml").status().code(), EINVAL);
}

TEST(Settings, Parse_SaysWhatToDo) {
  EXPECT_EQ(ParseSettings("workers = 1\n", "t.toml").status().message(),
            "t.toml: capacity is missing; add a line capacity = BYTES, the size of the volume");
  EXPECT_EQ(ParseSettings("capacity = 4096\n", "t.toml").status().message(),
            "t.toml: capacity must be a number of bytes from 16 MiB to just under 4 TiB, in whole pages of 4 KiB; "
            "put it right there");
  for (const char* line : {"workers 4", "workers =", "= 4", "workers = four", "device = \"a"}) {
    EXPECT_EQ(ParseSettings("capacity = 16777216\n" + std::string(line) + "\n", "t.toml").status().message(),
              "t.toml line 2: no setting; a line is KEY = VALUE, such as dram-ratio = 0.5 or kind = \"term\"")
        << line;
  }
  EXPECT_EQ(ParseSettings("workers = 1\n\ncapacity = 16777216\n workers=2\n", "t.toml").status().message(),
            "t.toml line 4: the key 'workers' is in line 1 already; remove one of the two");
}

TEST(Settings, RatioIsWrittenAsShortAsItCanBe) {
  VolumeSettings s;
  s.capacity_bytes = uint64_t{64} << 20;
  for (const auto& [ratio, text] :
       {std::pair(0.2, "0.2"), std::pair(1.0, "1"), std::pair(1.0 / 3, "0.3333333333333333")}) {
    s.dram_ratio = ratio;
    const std::string written = FormatSettings(s);
    EXPECT_NE(written.find(std::string("\ndram-ratio = ") + text + "\n"), std::string::npos) << written;
    const auto read = ParseSettings(written, "t.toml");
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    EXPECT_EQ(read->dram_ratio, ratio);
  }
}

}  // namespace termfs::fs::server
