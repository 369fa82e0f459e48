// SPDX-License-Identifier: Apache-2.0
//
// A region that grows and shrinks while clients use it: their bytes stay, new pages are zeros, mapped memory goes on
// being read, the files and the tier follow; and what cannot be is refused before anything has changed.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include "base/unique_fd.h"
#include "tests/unit/tlib/volume_fixture.h"
#include "tlib/server/region_label.h"

namespace termfs::tlib {
namespace {

using client::BitmapMode;

constexpr uint64_t kPages = 2048;
constexpr uint64_t kMaxPages = 16384;
constexpr uint64_t kLabelBytes = 1 << 20;

server::RegionOptions Options(double ratio) {
  server::RegionOptions options;
  options.pages = kPages;
  options.max_pages = kMaxPages;
  options.dram_ratio = ratio;
  options.sample_period = std::chrono::milliseconds(20);
  return options;
}

uint64_t LabelledPages(const TestVolume& volume) {
  const std::string path = volume.path() + "/region";
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return server::ReadRegionLabel(fd.get(), path).value().pages;
}

uint64_t RegionBytes(const TestVolume& volume) { return std::filesystem::file_size(volume.path() + "/region"); }

std::vector<std::byte> PageOf(uint64_t page, uint64_t version) {
  return std::vector(kPageSize, static_cast<std::byte>(page * 7 + version + 1));
}

// Pages [first, first + kCount) belong to it; it writes and reads them until told to stop.
class Load {
 public:
  static constexpr uint64_t kCount = 600;

  Load(const std::string& path, BitmapMode bitmap, uint64_t first)
      : first_(first), random_(first), thread_([this, path, bitmap] { error_ = Run(path, bitmap); }) {}
  ~Load() {
    if (thread_.joinable()) {
      thread_.join();
    }
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  uint64_t operations() const { return operations_; }
  std::string Stop() {
    stop_ = true;
    thread_.join();
    return error_;
  }

 private:
  std::string Run(const std::string& path, BitmapMode bitmap) {
    TestClient client;
    Status status = client.Connect(
        path,
        {.bitmap = bitmap, .pull_period = std::chrono::milliseconds(5), .heat_period = std::chrono::milliseconds(5)});
    std::array<uint64_t, kCount> versions{};  // 0: zeros
    std::vector<std::byte> found(kPageSize);
    while (status.ok() && !stop_) {
      const uint64_t index = random_.Below(kCount);
      const uint64_t page = first_ + index;
      if (random_.Below(3) == 0) {
        versions[index] = 1 + random_.Below(200);
        status = client.Write(page << kPageBits, PageOf(page, versions[index]));
      } else {
        status = client.Read(page << kPageBits, found);
        const auto expected = versions[index] == 0 ? std::vector<std::byte>(kPageSize) : PageOf(page, versions[index]);
        if (status.ok() && found != expected) {
          return "page " + std::to_string(page) + " is not what was written";
        }
      }
      operations_++;
    }
    return status.ok() ? "" : status.ToString();
  }

  const uint64_t first_;
  Random random_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> operations_{0};
  std::string error_;
  std::thread thread_;
};

void ExpectZeros(TestClient& client, uint64_t first, uint64_t end, uint64_t step) {
  std::vector<std::byte> found(kPageSize);
  for (uint64_t page = first; page < end; page += step) {
    std::fill(found.begin(), found.end(), std::byte{1});
    const Status read = client.Read(page << kPageBits, found);
    ASSERT_TRUE(read.ok()) << page << ": " << read.ToString();
    ASSERT_EQ(found, std::vector<std::byte>(kPageSize)) << page;
  }
}

void WriteAndRead(TestClient& client, uint64_t first, uint64_t end, uint64_t step) {
  std::vector<std::byte> found(kPageSize);
  for (uint64_t page = first; page < end; page += step) {
    const Status written = client.Write(page << kPageBits, PageOf(page, 3));
    ASSERT_TRUE(written.ok()) << page << ": " << written.ToString();
  }
  for (uint64_t page = first; page < end; page += step) {
    ASSERT_TRUE(client.Read(page << kPageBits, found).ok());
    ASSERT_EQ(found, PageOf(page, 3)) << page;
  }
}

Status ShrinkTo(server::Server& server, uint64_t pages) {
  const server::PageRange tail{.first = {pages}, .count = MetricOf(server.Metrics(), "region_pages") - pages};
  RETURN_IF_ERROR(server.RunInCoroutine([&] { return server.region().Zero({&tail, 1}); }));
  return server.Shrink(pages);
}

TEST(Resize, UnderReadersAndWriters_KeepsBytesAndServesTheNewPages) {
  TestVolume volume(Options(0.25));
  ASSERT_TRUE(volume.Format().ok());
  ASSERT_TRUE(volume.Start().ok());
  server::Server& server = volume.server();
  Load live(volume.path(), BitmapMode::kLive, 0);
  Load pulled(volume.path(), BitmapMode::kPulled, Load::kCount);
  Load off(volume.path(), BitmapMode::kOff, 2 * Load::kCount);
  std::array<TestClient, 3> clients;  // connected before anything grows
  ASSERT_TRUE(clients[0].Connect(volume.path(), {.bitmap = BitmapMode::kLive}).ok());
  ASSERT_TRUE(clients[1].Connect(volume.path(), {.bitmap = BitmapMode::kPulled}).ok());
  ASSERT_TRUE(clients[2].Connect(volume.path(), {.bitmap = BitmapMode::kOff}).ok());
  for (const uint64_t larger : {uint64_t{4096}, uint64_t{5001}, kMaxPages}) {
    const uint64_t before = MetricOf(server.Metrics(), "region_pages");
    const Status grown = server.Grow(larger);
    ASSERT_TRUE(grown.ok()) << grown.ToString();
    EXPECT_EQ(MetricOf(server.Metrics(), "region_pages"), larger);
    EXPECT_EQ(MetricOf(server.Metrics(), "frames_budget"), (larger + 2) / 4);
    EXPECT_EQ(RegionBytes(volume), kLabelBytes + larger * kPageSize);
    for (size_t i = 0; i < clients.size(); i++) {
      ExpectZeros(clients[i], before + i, larger, 37);
      WriteAndRead(clients[i], before + i, larger, 37 * 3);
    }
    ExpectZeros(clients[0], larger - 1, larger, 1);
    std::vector<std::byte> beyond(kPageSize);
    EXPECT_EQ(clients[0].Read(larger << kPageBits, beyond).code(), EINVAL);
  }
  ASSERT_TRUE(ShrinkTo(server, kPages).ok());
  EXPECT_EQ(MetricOf(server.Metrics(), "region_pages"), kPages);
  EXPECT_EQ(MetricOf(server.Metrics(), "frames_budget"), kPages / 4);
  EXPECT_EQ(RegionBytes(volume), kLabelBytes + kPages * kPageSize);
  ASSERT_TRUE(server.Grow(6000).ok());  // over what was there
  ExpectZeros(clients[0], kPages, 6000, 1);
  for (Load* const load : {&live, &pulled, &off}) {
    const uint64_t so_far = load->operations();
    EXPECT_TRUE(Eventually([&] { return load->operations() > so_far + 100; }));
    EXPECT_EQ(load->Stop(), "");
  }
}

TEST(Resize, Refused_ChangesNothing) {
  constexpr uint64_t kRoom = uint64_t{1} << 27;  // half a terabyte; the thread sanitizer has no address space for more
  TestVolume volume(Options(0.25));
  volume.options().region.max_pages = kRoom;
  ASSERT_TRUE(volume.Format().ok());
  ASSERT_TRUE(volume.Start().ok());
  server::Server& server = volume.server();
  EXPECT_TRUE(server.Grow(kPages).ok()) << "it has them";
  EXPECT_TRUE(server.Grow(kPages - 1).ok());
  EXPECT_EQ(MetricOf(server.Metrics(), "region_pages"), kPages);
  EXPECT_EQ(server.Grow(kRoom + 1).code(), EINVAL) << "more than there is room for";
  EXPECT_EQ(server.Grow(kRoom).code(), ENOMEM) << "a tier of 128 GiB";
  ASSERT_TRUE(server.SetDramRatio(0).ok());  // refused before anything is allocated
  EXPECT_EQ(server.Grow(kRoom).code(), ENOSPC) << "that much SSD";
  ASSERT_TRUE(server.SetDramRatio(0.25).ok());
  EXPECT_EQ(MetricOf(server.Metrics(), "region_pages"), kPages);
  EXPECT_EQ(MetricOf(server.Metrics(), "frames_budget"), kPages / 4);
  EXPECT_EQ(RegionBytes(volume), kLabelBytes + kPages * kPageSize);
  ASSERT_TRUE(server.Grow(2 * kPages).ok());
}

TEST(Resize, NotNoted_NextStartServesTheOldSizeAndCutsTheFile) {
  TestVolume volume(Options(0.25));
  ASSERT_TRUE(volume.Format().ok());
  ASSERT_TRUE(volume.Start().ok());
  {
    TestClient client;
    ASSERT_TRUE(client.Connect(volume.path()).ok());
    WriteAndRead(client, 0, kPages, 5);
  }
  ASSERT_TRUE(volume.server().Grow(2 * kPages).ok());
  volume.Stop();
  EXPECT_TRUE(server::Server::CheckRegion(volume.options().region).ok());
  const Status started = volume.Start();  // with the pages it had before
  ASSERT_TRUE(started.ok()) << started.ToString();
  EXPECT_EQ(MetricOf(volume.server().Metrics(), "region_pages"), kPages);
  EXPECT_EQ(RegionBytes(volume), kLabelBytes + kPages * kPageSize);
  EXPECT_EQ(LabelledPages(volume), kPages);
  ASSERT_TRUE(volume.server().Grow(3 * kPages).ok());
  volume.Stop();
  volume.options().region.pages = 3 * kPages;
  ASSERT_TRUE(volume.Start().ok());
  TestClient client;
  ASSERT_TRUE(client.Connect(volume.path()).ok());
  std::vector<std::byte> found(kPageSize);
  for (uint64_t page = 0; page < kPages; page += 5) {
    ASSERT_TRUE(client.Read(page << kPageBits, found).ok());
    ASSERT_EQ(found, PageOf(page, 3)) << page;
  }
  ExpectZeros(client, kPages, 3 * kPages, 3);
}

// Pages that nobody gets at keep the tier above its new budget.
TEST(Resize, Shrink_TheTierDoesNotFollowInTime_TheDeviceIsCutAllTheSame) {
  constexpr uint64_t kHeld = 8;
  constexpr double kRatio = 10.0 / kPages;  // 5 frames for half as many pages
  TestVolume volume(Options(kRatio));
  volume.options().region.shrink_timeout = std::chrono::milliseconds(200);
  ASSERT_TRUE(volume.Format().ok());
  ASSERT_TRUE(volume.Start().ok());
  server::Server& server = volume.server();
  TestClient client;
  ASSERT_TRUE(client.Connect(volume.path()).ok());
  WriteAndRead(client, 0, kHeld, 1);
  ASSERT_EQ(MetricOf(server.Metrics(), "pages_present"), kHeld);
  std::array<TestClient, kHeld> clients;
  std::vector<std::thread> holders;
  for (uint32_t page = 0; page < kHeld; page++) {
    ASSERT_TRUE(clients[page].Connect(volume.path()).ok());
    holders.emplace_back([&channel = *clients[page].channel, page] {
      const auto body = BytesOf(page);
      const auto reply = channel.Call({.opcode = kHoldPage, .body = body, .in = channel.buffer().first(1), .out = {}});
      EXPECT_EQ(reply.status().code(), EPERM) << reply.status().ToString();
    });
  }
  EXPECT_TRUE(Eventually([&] { return volume.service().withholding == kHeld; }));
  const Status shrunk = ShrinkTo(server, kPages / 2);
  EXPECT_TRUE(shrunk.ok()) << shrunk.ToString();
  EXPECT_EQ(MetricOf(server.Metrics(), "frames_used"), kHeld) << "or it shows nothing";
  EXPECT_EQ(MetricOf(server.Metrics(), "frames_budget"), 5u);
  EXPECT_EQ(MetricOf(server.Metrics(), "region_pages"), kPages / 2);
  EXPECT_EQ(RegionBytes(volume), kLabelBytes + kPages / 2 * kPageSize);
  EXPECT_EQ(LabelledPages(volume), kPages / 2);
  volume.service().withheld = false;
  for (std::thread& holder : holders) {
    holder.join();
  }
  const Status again = server.SetDramRatio(kRatio);
  EXPECT_TRUE(again.ok()) << again.ToString();
  EXPECT_LE(MetricOf(server.Metrics(), "frames_used"), 5u);
  std::vector<std::byte> found(kPageSize);
  for (uint64_t page = 0; page < kHeld; page++) {
    ASSERT_TRUE(client.Read(page << kPageBits, found).ok());
    EXPECT_EQ(found, PageOf(page, 3)) << page;
  }
}

TEST(Resize, LabelCutAndFileNot_NextStartCutsIt) {
  TestVolume volume(Options(0.25));
  ASSERT_TRUE(volume.Format().ok());
  std::filesystem::resize_file(volume.path() + "/region", kLabelBytes + 2 * kPages * kPageSize);
  const Status started = volume.Start();
  ASSERT_TRUE(started.ok()) << started.ToString();
  EXPECT_EQ(MetricOf(volume.server().Metrics(), "region_pages"), kPages);
  EXPECT_EQ(RegionBytes(volume), kLabelBytes + kPages * kPageSize);
}

}  // namespace
}  // namespace termfs::tlib
