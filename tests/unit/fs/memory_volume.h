// SPDX-License-Identifier: Apache-2.0
//
// TestVolume in memory; a test may reach for its parts.
#pragma once

#include <atomic>

#include "fs/server/cuts.h"
#include "fs/server/service.h"
#include "tests/fakes/faulty_store.h"
#include "tests/fakes/memory_tlib.h"
#include "tests/unit/fs/test_volume.h"

namespace termfs::fs {

class MemoryVolume final : public TestVolume {
 public:
  explicit MemoryVolume(uint64_t capacity_bytes, server::CoherenceTimeouts timeouts = {});
  ~MemoryVolume() override;
  std::unique_ptr<client::FileSystem> Connect(client::KernelCache* cache = nullptr) override;
  void Restart() override;
  std::vector<std::string> Check() override;

  // The server dies in the middle of it all and is started again, on what it has committed. From any thread.
  void KillAndRestart();
  void Kill();  // until Restart
  // The server does only what it is asked for from now on, until Restart.
  void StopBackground() { service_->StopBackground(); }
  // The next server will not have the memory of those before. REQUIRES: no server runs.
  void LoseMemory();
  // Of clients to come.
  void SetReconnect(std::chrono::seconds reconnect) { reconnect_ = reconnect; }
  void SetCallTimeout(std::chrono::milliseconds timeout) { call_timeout_ = timeout; }
  void SetAccessTimes(bool files, bool directories) { access_times_ = {.files = files, .directories = directories}; }
  // From the next Restart on.
  void SetMaxSegments(size_t segments) { max_segments_ = segments; }
  void SetGrace(std::chrono::milliseconds grace) { grace_ = grace; }
  // So long the server expects them back, whatever they do themselves.
  void SetExpected(uint32_t seconds) { expected_seconds_ = seconds; }

  MemoryServer& tlib() { return tlib_; }
  metadata::Namespace& names() { return *names_; }
  metadata::FaultyStore& store() { return store_; }

 private:
  void Start();
  void Stop();
  uint64_t starts_ = 0;
  uint64_t kept_since_ = 1;
  server::MemoryLeft left_ = server::MemoryLeft::kAll;  // to the next server
  std::chrono::seconds reconnect_{60};
  std::chrono::milliseconds call_timeout_ = tlib::client::SessionOptions().call_timeout;
  client::AccessTimes access_times_;
  uint32_t expected_seconds_ = 60;
  size_t max_segments_ = server::ServiceOptions().max_segments;
  std::chrono::milliseconds grace_ = server::ServiceOptions().grace;
  std::atomic<uint64_t> clients_{0};

  const server::CoherenceTimeouts timeouts_;
  const std::unique_ptr<metadata::KeyValueStore> memory_;
  metadata::FaultyStore store_{*memory_};
  std::unique_ptr<metadata::Namespace> names_;
  std::unique_ptr<server::FileService> service_;
  MemoryServer tlib_;
};

}  // namespace termfs::fs
