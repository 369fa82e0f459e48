// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/fs/memory_volume.h"

#include "fs/client/volume_client.h"
#include "metadata/memory_store.h"

namespace termfs::fs {

MemoryVolume::MemoryVolume(uint64_t capacity_bytes, server::CoherenceTimeouts timeouts)
    : timeouts_(timeouts), memory_(metadata::NewMemoryStore()), tlib_(capacity_bytes >> kPageBits) {
  metadata::FormatOptions options;
  options.capacity_pages = capacity_bytes >> kPageBits;
  const Status formatted = metadata::Namespace::Format(store_, options);
  EXPECT_TRUE(formatted.ok()) << formatted.ToString();
  Start();
}

MemoryVolume::~MemoryVolume() {
  Stop();
  EXPECT_TRUE(tlib_.Stop().ok());
}

void MemoryVolume::Start() {
  auto opened = metadata::Namespace::Open(store_);
  EXPECT_TRUE(opened.ok()) << opened.status().ToString();
  names_ = std::move(opened).value();
  server::ServiceOptions options;
  options.timeouts = timeouts_;
  options.start = ++starts_;
  options.max_segments = max_segments_;
  options.grace = grace_;
  service_ = std::make_unique<server::FileService>(*names_, options);
  EXPECT_TRUE(service_->LoadClients().ok());
  tlib_.Serve(*service_, starts_);
  EXPECT_TRUE(server::RestoreCuts(*names_, tlib_, left_).ok());
  left_ = server::MemoryLeft::kAll;
  service_->Attach(tlib_, nullptr, kept_since_);
}

void MemoryVolume::Stop() {
  if (service_ == nullptr) {
    return;
  }
  service_->StopBackground();
  EXPECT_TRUE(service_->Finish().ok());
  service_.reset();
  names_.reset();
}

void MemoryVolume::Kill() {
  tlib_.Die();
  service_->StopBackground();
  service_.reset();
  names_.reset();
}

void MemoryVolume::KillAndRestart() {
  Kill();
  Start();
}

void MemoryVolume::LoseMemory() {
  kept_since_ = starts_ + 1;
  left_ = server::MemoryLeft::kNone;
  tlib_.ForgetUnflushed();
}

void MemoryVolume::Restart() {
  Stop();
  Start();
}

std::vector<std::string> MemoryVolume::Check() {
  Stop();
  const auto report = metadata::Check(store_);
  EXPECT_TRUE(report.ok()) << report.status().ToString();
  return report.ok() ? report->problems : std::vector<std::string>{};
}

std::unique_ptr<client::FileSystem> MemoryVolume::Connect(client::KernelCache* cache) {
  client::MountOptions options;
  options.session.reconnect = reconnect_;
  options.session.call_timeout = call_timeout_;
  options.access_times = access_times_;
  const uint64_t number = reconnect_.count() > 0 ? ++clients_ : 0;
  auto connected = client::VolumeClient::Create(
      [this, number, expected = expected_seconds_](tlib::client::CallbackHandler* handler) {
        return tlib_.Connect(handler, number, expected);
      },
      options, cache);
  EXPECT_TRUE(connected.ok()) << connected.status().ToString();
  return std::move(connected).value();
}

std::unique_ptr<TestVolume> MakeMemoryVolume(uint64_t capacity_bytes) {
  return std::make_unique<MemoryVolume>(capacity_bytes);
}

}  // namespace termfs::fs
