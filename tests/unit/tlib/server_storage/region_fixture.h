// SPDX-License-Identifier: Apache-2.0
//
// A region on fake devices and a fake NIC, on real workers; it can crash and be opened again.
//
// Thread-safety: the test's thread; `Run` gives the region to a task.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "base/metrics.h"
#include "tests/fakes/fake_block_device.h"
#include "tests/fakes/fake_nic.h"
#include "tests/unit/tlib/server_storage/task_fixture.h"
#include "tlib/server/region_on_device.h"
#include "tlib/server/written_log.h"

namespace termfs::tlib::server {

struct RegionSetup {
  uint64_t pages = 64;
  double dram_ratio = 0.5;
  driver::RegionKind kind = driver::RegionKind::kTerm;
  FrameChoice choice = FrameChoice::kHeat;
  std::chrono::milliseconds sample_period{20};
  std::chrono::microseconds odp_delay{0};
  std::chrono::milliseconds shrink_timeout{60000};
};

class RegionFixture {
 public:
  static constexpr std::byte kOldBytes{0xa5};  // another file's

  // `runner`: made here when it is null; making one takes tens of milliseconds.
  explicit RegionFixture(const RegionSetup& setup, std::shared_ptr<TaskRunner> runner = nullptr)
      : setup_(setup),
        runner_(runner != nullptr ? std::move(runner) : std::make_shared<TaskRunner>()),
        page_medium_(std::make_shared<FakeMedium>(setup.pages * kPageSize, kOldBytes)),
        log_medium_(std::make_shared<FakeMedium>(WrittenLog::BytesFor(setup.pages), kOldBytes)) {
    FakeBlockDevice log(log_medium_);
    EXPECT_TRUE(WrittenLog::Format(log, setup.pages).ok());
    Open();
  }
  ~RegionFixture() { [[maybe_unused]] const Status status = Close(); }
  RegionFixture(const RegionFixture&) = delete;
  RegionFixture& operator=(const RegionFixture&) = delete;

  void Open() {
    using driver::RegionKind;
    const bool any_alignment =
        setup_.kind == RegionKind::kRpc || setup_.kind == RegionKind::kRpcBuffer || setup_.kind == RegionKind::kOdp;
    auto pages = std::make_unique<FakeBlockDevice>(page_medium_, any_alignment ? 1 : 4096);
    auto log = std::make_unique<FakeBlockDevice>(log_medium_);
    device_ = pages.get();
    log_device_ = log.get();
    RegionOptions options;
    options.kind = setup_.kind;
    options.device = "fake";
    options.pages = setup_.pages;
    options.dram_ratio = setup_.dram_ratio;
    options.choice = setup_.choice;
    options.sample_period = setup_.sample_period;
    options.odp_delay = setup_.odp_delay;
    options.shrink_timeout = setup_.shrink_timeout;
    auto opened = OpenRegionOn(options, {.nic = nic_, .domain = nic_, .metrics = metrics_, .spawn = runner_->spawner()},
                               {.pages = std::move(pages), .log = std::move(log)});
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    region_ = std::move(*opened);
    runner_->Run([this] {
      const Status started = region_->Start(nullptr);
      EXPECT_TRUE(started.ok()) << started.ToString();
    });
  }

  // Stops cleanly; the error of the last flush.
  Status Close() {
    Status status;
    if (region_ != nullptr) {
      runner_->Run([&] { status = region_->Stop(); });
      region_.reset();
    }
    return status;
  }

  void CrashAndReopen(uint64_t seed) {
    Random random(seed);
    device_->Crash(random);
    log_device_->Crash(random);
    [[maybe_unused]] const Status failed = Close();  // its last flush fails: the device is gone
    Open();
  }

  void Run(const std::function<void(Region&)>& test) {
    runner_->Run([&] { test(*region_); });
  }

  Region& region() { return *region_; }
  FakeBlockDevice& device() { return *device_; }
  FakeBlockDevice& log_device() { return *log_device_; }
  FakeMedium& log_medium() { return *log_medium_; }
  driver::FakeTermRegion& term() { return static_cast<driver::FakeTermRegion&>(region_->term()); }
  TaskRunner& runner() { return *runner_; }
  uint64_t Count(const char* counter) { return metrics_.counter(counter).value(); }
  uint64_t Gauge(const std::string& name) {
    for (const MetricValue& gauge : region_->Gauges()) {
      if (gauge.name == name) {
        return gauge.value;
      }
    }
    ADD_FAILURE() << "no gauge " << name;
    return 0;
  }

 private:
  const RegionSetup setup_;
  const std::shared_ptr<TaskRunner> runner_;
  MetricsRegistry metrics_;
  driver::FakeNic nic_;
  std::shared_ptr<FakeMedium> page_medium_;
  std::shared_ptr<FakeMedium> log_medium_;
  FakeBlockDevice* device_ = nullptr;
  FakeBlockDevice* log_device_ = nullptr;
  std::unique_ptr<Region> region_;
};

}  // namespace termfs::tlib::server
