// SPDX-License-Identifier: Apache-2.0
//
// Reads under way on the software RNIC: waited for together with another descriptor, also by a thread that is bound to
// a CPU, and across restarts of the server.
#include <fcntl.h>
#include <sched.h>
#include <sys/eventfd.h>

#include <atomic>
#include <thread>

#include "base/random.h"
#include "base/unique_fd.h"
#include "driver/softnic/softnic.h"
#include "tests/unit/eventually.h"
#include "tests/unit/fs/lane_of_reads.h"
#include "tests/unit/fs/real_volume.h"

namespace termfs::fs {

using client::OpenFile;

namespace {

constexpr size_t kPage = 4096;
constexpr uint64_t kPages = 3000;
constexpr size_t kPlaces = 16;

char ValueOf(uint64_t page) { return static_cast<char>(page * 7 % 251 + 1); }

// One page in ten of the volume's fits into memory.
class RealReadsUnderWay : public testing::Test {
 protected:
  RealReadsUnderWay() {
    auto nic = driver::CreateSoftNic();  // the volume's ends with its server
    EXPECT_TRUE(nic.ok());
    nic_ = std::move(*nic);
    client::MountOptions options;
    options.session.program = "test";
    auto connected = client::FileSystem::Connect(*nic_, volume_.directory(), options, nullptr);
    EXPECT_TRUE(connected.ok()) << connected.status().ToString();
    fs_ = std::move(*connected);
    lane_ = *fs_->OpenLane();
    file_ = fs_->Create(*lane_, {0, 0}, kRootInode, "f", 0644, O_RDWR)->second;
    for (uint64_t page = 0; page < kPages; ++page) {
      const std::string bytes(kPage, ValueOf(page));
      EXPECT_TRUE(fs_->Write(*lane_, file_, page * kPage, std::as_bytes(std::span(bytes)), {}).ok());
    }
    EXPECT_TRUE(fs_->Sync(*lane_, file_, false).ok());
    reads_.emplace(*fs_, kPlaces, kPage);
  }
  ~RealReadsUnderWay() override {
    fs_->Release(*lane_, file_);
    reads_.reset();
    lane_.reset();
  }

  void BeginSome() {
    while (reads_->room() > 0) {
      const uint64_t page = random_.Below(kPages);
      pages_[reads_->Begin(file_, page * kPage, kPage)] = page;
    }
  }
  void CheckDone() {
    for (const auto& [token, bytes] : reads_->TakeDone()) {
      EXPECT_TRUE(bytes == std::string(kPage, ValueOf(pages_[token]))) << bytes.substr(0, 10);
      ++checked_;
    }
  }
  // What it waits for beside the reads comes from another thread, time after time.
  void ReadTogetherWithSomethingElse() {
    const UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    std::atomic<bool> stop{false};
    std::thread other([&] {
      while (!stop) {
        EXPECT_EQ(eventfd_write(event.get(), 1), 0);
        std::this_thread::yield();
      }
    });
    uint64_t others = 0;
    uint64_t waits = 0;
    while ((checked_ < 5000 || others < 10) && !HasFailure()) {
      BeginSome();
      bool other_came = false;
      waits += reads_->WaitWith(event.get(), 10'000, other_came) ? 1 : 0;
      if (other_came) {
        eventfd_t count = 0;
        eventfd_read(event.get(), &count);
        ++others;
      }
      EXPECT_TRUE(reads_->Poll().ok());
      CheckDone();
    }
    stop = true;
    other.join();
    reads_->AwaitAll();
    CheckDone();
    EXPECT_GT(waits, 0u);
  }

  RealVolume volume_{uint64_t{16} << 20, 0.1};
  std::unique_ptr<driver::Nic> nic_;
  std::unique_ptr<client::FileSystem> fs_;
  std::unique_ptr<client::Lane> lane_;
  OpenFile* file_ = nullptr;
  std::optional<LaneOfReads> reads_;
  Random random_{5};
  std::map<uint64_t, uint64_t> pages_;  // by token
  uint64_t checked_ = 0;
};

}  // namespace

TEST_F(RealReadsUnderWay, WaitedForTogetherWithSomethingElse) { ReadTogetherWithSomethingElse(); }

// Absent pages are asked for on another queue pair than everything else, then.
TEST_F(RealReadsUnderWay, WaitedForByABoundThread) {
  std::thread bound([this] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(sched_getcpu()), &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
    ReadTogetherWithSomethingElse();
  });
  bound.join();
}

// The wait ends with what it is for, and not with its time.
TEST_F(RealReadsUnderWay, TheAnswerWakes) {
  int slept = 0;
  for (int round = 0; round < 2000 && slept < 50; ++round) {
    while (reads_->under_way() == 0) {
      const uint64_t page = random_.Below(kPages);
      pages_[reads_->Begin(file_, page * kPage, kPage)] = page;
      CheckDone();
    }
    bool other = false;
    if (reads_->WaitWith(-1, 20'000, other)) {
      EXPECT_GT(reads_->readable(), 0) << "the time was over";
      ++slept;
    }
    EXPECT_TRUE(reads_->Poll().ok());
    CheckDone();
  }
  EXPECT_EQ(slept, 50);
}

TEST_F(RealReadsUnderWay, TheServerIsRestarted_TheyGoOn) {
  std::atomic<bool> stop{false};
  const auto reconnections = [&] {
    for (const MetricValue& metric : fs_->Metrics()) {
      if (metric.name == "link_reconnections_total") {
        return metric.value;
      }
    }
    return uint64_t{0};
  };
  std::thread restarts([&] {
    for (uint64_t round = 1; round <= 4; ++round) {
      volume_.Restart();
      EXPECT_TRUE(Eventually([&] { return reconnections() == round; }));
    }
    stop = true;
  });
  for (uint64_t round = 0; !stop; ++round) {
    BeginSome();
    bool other = false;
    if (round % 2 == 0) {
      reads_->WaitWith(-1, 10'000, other);
      EXPECT_TRUE(reads_->Poll().ok());
    } else {
      EXPECT_TRUE(reads_->Await().ok());
    }
    CheckDone();
  }
  restarts.join();
  reads_->AwaitAll();
  CheckDone();
}

}  // namespace termfs::fs
