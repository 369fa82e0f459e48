// SPDX-License-Identifier: Apache-2.0
//
// READs by validation, over the software RNIC's network: never a wrong byte, however much the server writes, evicts,
// reuses frames and gives their memory back.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <thread>

#include "driver/page_table.h"
#include "driver/softnic/page_table.h"
#include "tests/fakes/stepping_nic.h"
#include "tests/unit/tlib/volume_fixture.h"
#include "tlib/rpc/secret.h"
#include "tlib/rpc/tcp_socket.h"

namespace termfs::tlib {
namespace {

using client::BitmapMode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr uint64_t kPages = 8192;  // eight chunks of frames, if all are in memory
constexpr uint64_t kHotPages = 64;

uint16_t FreePort() {
  const UniqueFd fd(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return LocalPlaceOf(fd.get()).port;
}

// Every word of a page says which page and which version of it that is.
uint64_t WordOf(uint64_t page, uint32_t version) { return page << 32 | version; }

class ValidatedReads : public testing::Test {
 protected:
  explicit ValidatedReads(double ratio = 0.5) : volume_(Options(ratio)) {
    volume_.nic_options().validated_reads = true;
    volume_.options().listen = place_;
    EXPECT_TRUE(MakeSecret(SecretFile()).ok());
    volume_.options().tls = ServerTls(SecretFile()).value();
  }
  static server::RegionOptions Options(double ratio) {
    server::RegionOptions options;
    options.pages = kPages;
    options.dram_ratio = ratio;
    options.sample_period = milliseconds(20);
    return options;
  }
  void SetUp() override {
    ASSERT_TRUE(volume_.Format().ok());
    const Status started = volume_.Start();
    ASSERT_TRUE(started.ok()) << started.ToString();
  }
  std::string SecretFile() const { return volume_.path() + "/secret"; }
  Status Connect(TestClient& client) {
    client::SessionOptions options;
    options.bitmap = BitmapMode::kPulled;
    options.pull_period = milliseconds(50);
    options.heat_period = milliseconds(20);
    return client.Connect(ServerAddress(place_, SecretFile()), options);
  }
  void WritePages(TestClient& client, uint64_t first, uint64_t count, uint32_t version) {
    constexpr uint64_t kAtOnce = 64;
    for (uint64_t page = first; page < first + count; page += kAtOnce) {
      std::vector<uint64_t> words;
      for (uint64_t i = page; i < std::min(page + kAtOnce, first + count); i++) {
        words.insert(words.end(), kPageSize / 8, WordOf(i, version));
      }
      const Status written = client.Write(page * kPageSize, std::as_bytes(std::span(words)));
      ASSERT_TRUE(written.ok()) << written.ToString();
    }
  }
  // REQUIRES: the pages are of this version.
  static void ExpectPages(TestClient& client, uint64_t first, uint64_t count, uint32_t version) {
    std::vector<uint64_t> words(count * kPageSize / 8);
    const Status read = client.Read(first * kPageSize, std::as_writable_bytes(std::span(words)));
    ASSERT_TRUE(read.ok()) << read.ToString();
    for (size_t i = 0; i < words.size(); i++) {
      ASSERT_EQ(words[i], WordOf(first + i * 8 / kPageSize, version)) << "page " << first + i * 8 / kPageSize;
    }
  }
  static uint64_t Metric(const TestClient& client, std::string_view name) {
    return MetricOf(client.session->Metrics(), name);
  }
  uint64_t Metric(std::string_view name) { return MetricOf(volume_.server().Metrics(), name); }

  const HostPort place_{"::1", FreePort()};
  TestVolume volume_;
};

class ValidatedReadsInMemory : public ValidatedReads {
 protected:
  ValidatedReadsInMemory() : ValidatedReads(1.0) {}
};

TEST_F(ValidatedReadsInMemory, WhatIsInMemoryNeedsNoRpc) {
  TestClient client;
  const Status connected = Connect(client);
  ASSERT_TRUE(connected.ok()) << connected.ToString();
  EXPECT_EQ(client.session->way(), driver::ReadWay::kValidated);
  EXPECT_EQ(volume_.server().Sessions().front().way, driver::ReadWay::kValidated);
  WritePages(client, 0, 2000, 1);
  for (uint64_t page = 0; page < 2000; page += 50) {
    ExpectPages(client, page, 50, 1);
  }
  EXPECT_EQ(Metric(client, "read_hit_pages_total"), 2000U);
  EXPECT_EQ(Metric(client, "rpc_reads_total"), 0U);
  // Parts of pages, across their borders, and many reads at once.
  std::array<client::ReadRequest, 100> reads;
  for (size_t i = 0; i < reads.size(); i++) {
    reads[i] = {.offset = {i * 5 * kPageSize + 4000 + 8 * (i % 4)},
                .length = static_cast<uint32_t>(64 + 4096 * (i % 3)),
                .destination = client.channel->buffer().data() + i * 10000};
  }
  const Status read = client.channel->Read(reads);
  ASSERT_TRUE(read.ok()) << read.ToString();
  for (const client::ReadRequest& each : reads) {
    for (uint32_t at = 0; at < each.length; at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, each.destination + at, sizeof(word));
      ASSERT_EQ(word, WordOf((each.offset.value + at) / kPageSize, 1));
    }
  }
  EXPECT_EQ(Metric(client, "rpc_reads_total"), 0U);
  EXPECT_EQ(Metric(client, "validation_misses_total"), 0U);
}

TEST_F(ValidatedReadsInMemory, APageThatHasChangedIsAskedForOnce) {
  TestClient client;
  TestClient writer;
  ASSERT_TRUE(Connect(client).ok() && Connect(writer).ok());
  WritePages(writer, 0, 64, 1);
  ExpectPages(client, 0, 64, 1);
  WritePages(writer, 3, 1, 2);
  ExpectPages(client, 3, 1, 2);
  EXPECT_LE(Metric(client, "validation_misses_total"), 1U);  // 0: the table was pulled in between
  const uint64_t rpcs = Metric(client, "rpc_reads_total");
  EXPECT_EQ(rpcs, Metric(client, "validation_misses_total"));
  ExpectPages(client, 3, 1, 2);
  ExpectPages(client, 4, 10, 1);
  EXPECT_EQ(Metric(client, "rpc_reads_total"), rpcs);
}

// What has been read again and again comes into memory, and the client finds out without being told.
TEST_F(ValidatedReads, WhatComesIntoMemoryIsFound) {
  TestClient client;
  ASSERT_TRUE(Connect(client).ok());
  WritePages(client, 0, kPages, 1);
  ASSERT_TRUE(Eventually([&] {
    const uint64_t rpcs = Metric(client, "rpc_reads_total");
    for (uint64_t page = 0; page < 100; page++) {
      ExpectPages(client, page, 1, 1);
    }
    return Metric(client, "rpc_reads_total") == rpcs;
  }));
  EXPECT_GE(Metric(client, "read_hit_pages_total"), 100U);
}

// One writer per page; what a reader sees is not older than what was written before its read began.
class Hammer {
 public:
  explicit Hammer(std::function<Status(TestClient&)> connect)
      : connect_(std::move(connect)), acknowledged_(kPages), begun_(kPages) {
    for (uint64_t page = 0; page < kPages; page++) {
      acknowledged_[page] = begun_[page] = 1;
    }
  }

  void Write(uint64_t seed) {
    TestClient client;
    Fail(connect_(client));
    Random random(seed);
    while (!stop_) {
      // Each writer has every second page.
      const uint64_t page = random.Below(Hot(random) ? kHotPages : kPages) / 2 * 2 + seed % 2;
      const uint32_t version = ++begun_[page];
      const std::vector<uint64_t> words(kPageSize / 8, WordOf(page, version));
      Fail(client.Write(page * kPageSize, std::as_bytes(std::span(words))));
      acknowledged_[page] = version;
      writes++;
    }
  }

  void Read(uint64_t seed) {
    TestClient client;
    Fail(connect_(client));
    Random random(seed);
    std::vector<uint64_t> words(16 * kPageSize / 8);
    std::array<uint32_t, 17> oldest{};
    while (!stop_) {
      const uint64_t first = random.Below(Hot(random) ? kHotPages : kPages - 16);
      const uint64_t in_page = random.Below(kPageSize / 8) * 8;
      const uint64_t length = random.Below(2) == 0 ? 8 * (1 + random.Below(16 * kPageSize / 8 - 1)) : 64;
      for (uint64_t i = 0; i < oldest.size(); i++) {
        oldest[i] = first + i < kPages ? acknowledged_[first + i].load() : 0;
      }
      Fail(client.Read(first * kPageSize + in_page, std::as_writable_bytes(std::span(words).first(length / 8))));
      Check(std::span(words).first(length / 8), first, in_page, oldest);
      reads++;
    }
    hits += MetricOf(client.session->Metrics(), "read_hit_pages_total");
    misses += MetricOf(client.session->Metrics(), "validation_misses_total");
  }

  void Stop() { stop_ = true; }
  bool failed() const { return failed_; }

  std::atomic<uint64_t> writes{0}, reads{0}, hits{0}, misses{0};

 private:
  static bool Hot(Random& random) { return random.Below(2) == 0; }

  void Check(std::span<const uint64_t> words, uint64_t first, uint64_t in_page, std::span<const uint32_t> oldest) {
    uint64_t seen = 0;
    for (size_t i = 0; i < words.size(); i++) {
      const uint64_t index = (in_page + i * 8) / kPageSize;
      const auto version = static_cast<uint32_t>(words[i]);
      const bool starts = i == 0 || (in_page + i * 8) % kPageSize == 0;
      if (words[i] >> 32 != first + index || version < oldest[index] || version > begun_[first + index] ||
          (!starts && words[i] != seen)) {
        ADD_FAILURE() << "page " << first + index << ": word " << std::hex << words[i] << " after " << seen
                      << ", no older than version " << oldest[index];
        failed_ = true;
        stop_ = true;
        return;
      }
      seen = words[i];
    }
  }
  void Fail(const Status& status) {
    if (!status.ok() && !stop_.exchange(true)) {
      ADD_FAILURE() << status.ToString();
      failed_ = true;
    }
  }

  const std::function<Status(TestClient&)> connect_;
  std::vector<std::atomic<uint32_t>> acknowledged_;
  std::vector<std::atomic<uint32_t>> begun_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
};

TEST_F(ValidatedReads, NoWrongByteWhileEverythingMoves) {
  {
    TestClient client;
    ASSERT_TRUE(Connect(client).ok());
    WritePages(client, 0, kPages, 1);
  }
  Hammer hammer([this](TestClient& client) { return Connect(client); });
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 2; seed++) {
    threads.emplace_back([&, seed] { hammer.Write(seed); });
    threads.emplace_back([&, seed] { hammer.Read(seed + 100); });
  }
  // The tier's chunks come and go; the reads must not notice, but by an RPC.
  uint64_t resizes = 0;
  for (const auto end = steady_clock::now() + seconds(4); steady_clock::now() < end && !hammer.failed(); resizes++) {
    const Status resized = volume_.server().SetDramRatio(resizes % 2 == 0 ? 0.1 : 0.5);
    EXPECT_TRUE(resized.ok() || resized.code() == ETIMEDOUT) << resized.ToString();
    std::this_thread::sleep_for(milliseconds(resizes % 4 * 30));
  }
  hammer.Stop();
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_FALSE(hammer.failed());
  EXPECT_GT(resizes, 2U);
  EXPECT_GT(hammer.hits, 0U);
  EXPECT_GT(hammer.misses, 0U) << "nothing raced";
  EXPECT_TRUE(volume_.server().SetDramRatio(0.1).ok());
  EXPECT_TRUE(Eventually([&] { return Metric("frame_chunks_retiring") == 0; }));
  std::printf("%lu reads, %lu hits, %lu validation misses, %lu writes, %lu resizes\n", hammer.reads.load(),
              hammer.hits.load(), hammer.misses.load(), hammer.writes.load(), resizes);
}

TEST_F(ValidatedReads, AServerThatStartsAgainIsReadAnew) {
  TestClient client;
  ASSERT_TRUE(Connect(client).ok());
  WritePages(client, 0, 128, 1);
  ExpectPages(client, 0, 128, 1);
  volume_.Stop();
  ASSERT_TRUE(volume_.Start().ok());
  TestClient again;
  const Status connected = Connect(again);
  ASSERT_TRUE(connected.ok()) << connected.ToString();
  WritePages(again, 0, 64, 2);
  ExpectPages(again, 0, 64, 2);
  ExpectPages(again, 64, 64, 1);
  std::vector<std::byte> bytes(64);
  EXPECT_EQ(client.Read(0, bytes).code(), ENOTCONN);
}

// An object of the server's, in this process.
std::byte* ServersObject(const char* name) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    char access[5] = {};
    if (line.find(name) != std::string::npos && std::sscanf(line.c_str(), "%lx-%*x %4s", &begin, access) == 2 &&
        access[1] == 'w') {
      return reinterpret_cast<std::byte*>(begin);
    }
  }
  ADD_FAILURE() << "no " << name;
  return nullptr;
}
driver::PageTableEntry* ServersEntries() {
  return reinterpret_cast<driver::PageTableEntry*>(ServersObject("termfs-page-table") +
                                                   driver::softnic::kEntriesOffset);
}

TEST_F(ValidatedReadsInMemory, ATableThatLiesCostsAnRpc) {
  TestClient client;
  ASSERT_TRUE(Connect(client).ok());
  WritePages(client, 0, 512, 1);
  driver::PageTableEntry* const entries = ServersEntries();
  const uint64_t before = entries[10].load();
  ASSERT_LT(driver::FrameOf(before), kPages);
  for (const uint32_t frame : {static_cast<uint32_t>(kPages), static_cast<uint32_t>(kPages) + 1023, 1U << 24,
                               driver::kWritingFrame - 1, driver::kWritingFrame, driver::kMagicFrame}) {
    const uint64_t rpcs = Metric(client, "rpc_reads_total");
    entries[10].store(driver::MakeEntry(driver::GenerationOf(before) + 1, frame));
    ExpectPages(client, 10, 1, 1);  // the entry may be known from before, and fails then
    ExpectPages(client, 10, 1, 1);
    EXPECT_EQ(Metric(client, "rpc_reads_total"), rpcs + 2) << frame;
  }
  entries[10].store(0);
  ExpectPages(client, 10, 1, 1);
  entries[10].store(before);
  EXPECT_TRUE(Eventually([&] {
    const uint64_t rpcs = Metric(client, "rpc_reads_total");
    ExpectPages(client, 10, 1, 1);
    return Metric(client, "rpc_reads_total") == rpcs;
  }));
  EXPECT_FALSE(client.session->lost());
}

// ---------------------------------------------------------------------------------------------------------------
// Between the READs of one post. The page's frame goes to another page and comes back, as the server would do that, at
// moments that are chosen; `reversed`: the RNIC carries READs out in the reverse order where no fence forbids it.

class ValidatedReadsInSteps : public ValidatedReadsInMemory, public testing::WithParamInterface<bool> {
 protected:
  static constexpr uint64_t kPage = 10;

  void SetUp() override {
    ValidatedReadsInMemory::SetUp();
    steps_.reversed = GetParam();
    client_.nic = std::make_unique<driver::SteppingNic>(driver::CreateSoftNic().value(), steps_);
    client::SessionOptions options;
    options.bitmap = BitmapMode::kPulled;
    options.pull_period = seconds(3600);
    auto session = client::Session::Connect(*client_.nic, ServerAddress(place_, SecretFile()), options, nullptr);
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    client_.session = std::move(session).value();
    client_.channel = client_.session->OpenChannel({}).value();
    WritePages(client_, 0, 64, 1);
    ExpectPages(client_, 0, 64, 1);  // their entries are known now
    ASSERT_EQ(Metric(client_, "rpc_reads_total"), 0U);
    entry_ = &ServersEntries()[kPage];
    frame_ = driver::FrameOf(entry_->load());
    ASSERT_LT(frame_, kPages);
    bytes_ = ServersObject("termfs-frames") + frame_ * kPageSize;
  }
  // Another page's bytes are in the frame. `hide`: how its own gives it up.
  void GiveFrameAway(void (*hide)(driver::PageTableEntry&)) {
    hide(*entry_);
    std::fill_n(bytes_, kPageSize, std::byte{0xbd});
  }
  void BringFrameBack() {
    std::fill_n(reinterpret_cast<uint64_t*>(bytes_), kPageSize / 8, WordOf(kPage, 1));
    driver::PublishEntry(*entry_, frame_);
  }
  // The page is asked for by RPC, once, and then READ again.
  void ExpectDisbelief() {
    ExpectPages(client_, kPage, 1, 1);
    EXPECT_EQ(steps_seen_, 2U) << "the frame and the entry";
    EXPECT_EQ(Metric(client_, "validation_misses_total"), 1U);
    EXPECT_EQ(Metric(client_, "rpc_reads_total"), 1U);
    steps_.look = nullptr;
    ExpectPages(client_, kPage, 1, 1);
    EXPECT_EQ(Metric(client_, "rpc_reads_total"), 1U);
  }

  driver::Steps steps_;
  TestClient client_;
  driver::PageTableEntry* entry_ = nullptr;
  uint32_t frame_ = 0;
  std::byte* bytes_ = nullptr;
  size_t steps_seen_ = 0;
};

TEST_P(ValidatedReadsInSteps, EvictedBetweenTheFrameAndTheEntry_IsNotBelieved) {
  steps_.look = [this](size_t done) {
    if (done == 1) {
      GiveFrameAway(driver::HideEntry);
    } else if (done == 2) {
      BringFrameBack();
    }
    steps_seen_ = done;
  };
  ExpectDisbelief();
}

// The frame is READ while another page is in it, and is the page's again, at the very same place, before the entry is
// READ: nothing but the generation tells.
TEST_P(ValidatedReadsInSteps, EvictedAndBackBeforeTheEntry_IsNotBelieved) {
  steps_.look = [this](size_t done) {
    if (done == 0) {
      GiveFrameAway(driver::HideEntry);
    } else if (done == 1) {
      BringFrameBack();
    }
    steps_seen_ = done;
  };
  ExpectDisbelief();
}

TEST_P(ValidatedReadsInSteps, WrittenWhileItIsRead_IsNotBelieved) {
  steps_.look = [this](size_t done) {
    if (done == 0) {
      GiveFrameAway(driver::BeginWriteEntry);
    } else if (done == 1) {
      BringFrameBack();
    }
    steps_seen_ = done;
  };
  ExpectDisbelief();
}

INSTANTIATE_TEST_SUITE_P(Orders, ValidatedReadsInSteps, testing::Bool(),
                         [](const auto& of) { return of.param ? "reversed" : "asPosted"; });

}  // namespace
}  // namespace termfs::tlib
