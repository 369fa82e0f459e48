// SPDX-License-Identifier: Apache-2.0
//
// KilledVolume: a volume in a folder of its own whose server and client run together in one process after another, each
// of which is killed at a named point or ends by itself. Every other time the volume is checked before it starts, every
// fourth time for repair. A loss of power afterwards drops the tmpfs and some of the metadata's log that was not
// synced.
//
// Thread-safety: one thread; the calling process must have no other.
// Ownership:     the folders, which go with it.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "driver/softnic/softnic.h"
#include "fs/client/file_system.h"
#include "fs/server/volume.h"
#include "metadata/rocksdb_store.h"
#include "tests/crash/file_model.h"
#include "tests/crash/killed_process.h"
#include "tests/crash/model_client.h"
#include "tests/fakes/crash_nic.h"
#include "tests/fakes/crash_store.h"

namespace termfs::fs {

struct Round {
  std::string point;   // where the process is killed; empty: nowhere
  uint64_t count = 0;  // at which passage of it
  uint64_t seed = 0;
  bool power_loss = false;  // after it
};

class KilledVolume {
 public:
  KilledVolume() {
    std::string name = testing::TempDir() + "termfs-crash-XXXXXX";
    TERMFS_CHECK(mkdtemp(name.data()) != nullptr);
    directory_ = name;
    memory_ = "/dev/shm/termfs-crash-" + name.substr(name.size() - 6);
    const HowItEnded formatted = RunInProcess([&]() -> std::string {
      server::FormatOptions options;
      options.settings.capacity_bytes = kCapacity;
      options.settings.dram_ratio = 0.1;
      options.settings.sample_period_ms = 50;
      options.settings.memory_directory = memory_;
      const Status status = server::FormatVolume(directory_, options);
      return status.ok() ? "" : status.ToString();
    });
    TERMFS_CHECK(formatted == HowItEnded::kByItself);
  }
  ~KilledVolume() {
    std::filesystem::remove_all(directory_);
    std::filesystem::remove_all(memory_);
  }

  HowItEnded Run(const Round& round, const std::function<void(ModelClient&)>& work) {
    const HowItEnded ended = RunInProcess([&] { return Serve(round, work); });
    if (round.power_loss && ended != HowItEnded::kFailed) {
      Random random(round.seed);
      metadata::LosePower(directory_ + "/meta", *synced_, random);
      std::filesystem::remove_all(memory_);
      model_->LosePower();
    }
    return ended;
  }
  uint64_t acknowledged() { return model_->acknowledged(); }

 private:
  // In a process of its own.
  std::string Serve(const Round& round, const std::function<void(ModelClient&)>& work) {
    const std::string at = round.point + ":" + std::to_string(round.count) + " seed " + std::to_string(round.seed);
    if (round.seed % 2 == 0) {
      const auto report = server::CheckVolume(directory_, /*repair=*/round.seed % 4 == 0);
      if (!report.ok() || !report->problems.empty()) {
        return at + ": check: " + (report.ok() ? report->problems[0] : report.status().ToString());
      }
    }
    CrashPoints points(round.point, round.count);
    auto soft = driver::CreateSoftNic();
    auto settings = server::LoadSettings(directory_);
    if (!soft.ok() || !settings.ok()) {
      return "no RNIC, or no settings";
    }
    driver::CrashNic nic(**soft, points);
    const auto open = [&](const std::string& path) -> Result<std::unique_ptr<metadata::KeyValueStore>> {
      ASSIGN_OR_RETURN(auto store, metadata::OpenRocksDb(path));
      return std::unique_ptr<metadata::KeyValueStore>(
          std::make_unique<metadata::CrashStore>(std::move(store), path, points, *synced_));
    };
    const auto served = server::VolumeServer::Start(nic, directory_, *settings, open);
    if (!served.ok()) {
      EndWith(at + ": start: " + served.status().ToDebugString());
    }
    const auto connected = client::FileSystem::Connect(nic, directory_, {}, nullptr);
    if (!connected.ok()) {
      EndWith(at + ": connect: " + connected.status().ToDebugString());
    }
    auto lane = (*connected)->OpenLane();
    if (!lane.ok()) {
      EndWith(at + ": lane: " + lane.status().ToDebugString());
    }
    ModelClient user(**connected, **lane, *model_, round.seed, directory_, *capacities_);
    user.Verify();
    work(user);
    EndWith("");
  }

  std::string directory_;
  std::string memory_;
  Shared<FileModel> model_;
  Shared<metadata::SyncedLogs> synced_;
  Shared<Capacities> capacities_;
};

}  // namespace termfs::fs
