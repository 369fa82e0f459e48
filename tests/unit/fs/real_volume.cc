// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/fs/real_volume.h"

#include <filesystem>
#include <fstream>

#include "driver/softnic/softnic.h"

namespace termfs::fs {

RealVolume::RealVolume(uint64_t capacity_bytes, double dram_ratio) {
  std::string name = testing::TempDir() + "termfs_volume_XXXXXX";
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  directory_ = name;
  server::FormatOptions options;
  options.settings.capacity_bytes = capacity_bytes;
  options.settings.dram_ratio = dram_ratio;
  options.settings.sample_period_ms = 100;
  memory_ = "/dev/shm/termfs_test_" + directory_.substr(directory_.size() - 6);
  options.settings.memory_directory = memory_;
  const Status formatted = server::FormatVolume(directory_, options);
  EXPECT_TRUE(formatted.ok()) << formatted.ToString();
  Start();
}

RealVolume::~RealVolume() {
  Stop();
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
  std::filesystem::remove_all(memory_, ignored);
}

void RealVolume::Start() {
  auto nic = driver::CreateSoftNic();
  ASSERT_TRUE(nic.ok()) << nic.status().ToString();
  nic_ = std::move(nic).value();
  auto settings = server::LoadSettings(directory_);
  ASSERT_TRUE(settings.ok()) << settings.status().ToString();
  auto served = server::VolumeServer::Start(*nic_, directory_, *settings);
  ASSERT_TRUE(served.ok()) << served.status().ToString();
  server_ = std::move(served).value();
}

void RealVolume::Stop() {
  if (server_ != nullptr) {
    const Status stopped = server_->Stop();
    EXPECT_TRUE(stopped.ok()) << stopped.ToString();
  }
  server_.reset();
  nic_.reset();
}

void RealVolume::Restart() {
  Stop();
  Start();
}

std::vector<std::string> RealVolume::Check() {
  Stop();
  const auto report = server::CheckVolume(directory_);
  EXPECT_TRUE(report.ok()) << report.status().ToString();
  return report.ok() ? report->problems : std::vector<std::string>{};
}

std::string RealVolume::Text(const std::string& name) const {
  std::ifstream in(directory_ + "/" + name);
  EXPECT_TRUE(in.is_open()) << name;
  return {std::istreambuf_iterator<char>(in), {}};
}

std::unique_ptr<client::FileSystem> RealVolume::Connect(client::KernelCache* cache) {
  client::MountOptions options;
  options.session.program = "test";
  auto connected = client::FileSystem::Connect(*nic_, directory_, options, cache);
  EXPECT_TRUE(connected.ok()) << connected.status().ToString();
  return connected.ok() ? std::move(connected).value() : nullptr;
}

std::unique_ptr<TestVolume> MakeRealVolume(uint64_t capacity_bytes) {
  return std::make_unique<RealVolume>(capacity_bytes, 0.5);
}

}  // namespace termfs::fs
