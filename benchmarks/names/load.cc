// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/names/load.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_set>

#include "base/random.h"
#include "benchmarks/must.h"
#include "benchmarks/names/tree.h"
#include "benchmarks/term/process_usage.h"
#include "driver/softnic/softnic.h"
#include "fs/client/admin.h"
#include "fs/client/file_system.h"

namespace termfs::benchmarks::names {
namespace {

using std::chrono::steady_clock;

constexpr size_t kListBytes = size_t{1} << 20;
constexpr uint64_t kStride = kTurns + 1;

// What the process has read by system calls: of a server that is asked for names only, that is what the store read.
uint64_t ReadBytesOf(pid_t process) {
  std::ifstream io("/proc/" + std::to_string(process) + "/io");
  std::string key;
  for (uint64_t value = 0; io >> key >> value;) {
    if (key == "rchar:") {
      return value;
    }
  }
  Die(Status::Error(ENOTSUP, "this kernel does not tell in /proc/PID/io what a process read"));
}

fs::client::MountOptions OptionsOf() {
  fs::client::MountOptions options;
  options.session.program = "names_bench";
  return options;
}

// One thread's way to the server.
struct Asker {
  std::unique_ptr<fs::client::Lane> lane;
  Random random;
};

class Load {
 public:
  explicit Load(const LoadSettings& settings)
      : settings_(settings),
        nic_(Must(driver::CreateSoftNic())),
        volume_(Must(fs::client::FileSystem::Connect(*nic_, settings.volume, OptionsOf(), nullptr))),
        server_(static_cast<pid_t>(Must(fs::client::GetStatus(settings.volume)).pid)) {
    for (uint64_t i = 0; i < settings_.threads; ++i) {
      askers_.push_back({Must(volume_->OpenLane()), Random(settings_.turn * settings_.threads + i + 1)});
    }
  }

  std::vector<Cost> Run() {
    std::vector<Cost> costs;
    if (settings_.cold > 0) {
      costs.push_back(Cold());
    }
    LearnDirectories();
    if (settings_.walk) {
      RunAll(directories_.size(), [this](Asker& asker, uint64_t i) { List(asker, directories_[i]); });
    }
    const auto look_up = [this](Asker& asker, uint64_t) { LookUp(asker, Draw(asker.random)); };
    MeasureKind("look-up", settings_.operations / 10, look_up);  // warms up
    costs.push_back(MeasureKind("look-up", settings_.operations, look_up));
    costs.push_back(MeasureKind("list", settings_.lists,
                                [this](Asker& asker, uint64_t) { List(asker, DirectoryOf(Draw(asker.random))); }));
    costs.push_back(
        MeasureKind("create", settings_.operations, [this](Asker& asker, uint64_t i) { Create(asker, i); }));
    RunAll(made_.size(), [this](Asker& asker, uint64_t i) { UnlinkMade(asker, i); });  // the next turn finds as many
    const std::vector<uint64_t> files = DrawForUnlink();
    costs.push_back(MeasureKind("unlink", files.size(), [&](Asker& asker, uint64_t i) {
      Must(volume_->Unlink(*asker.lane, DirectoryOf(files[i]), FileName(files[i])));
    }));
    return costs;
  }

 private:
  // One of every kStride files, from `first`. Turns unlink what others do not ask for.
  uint64_t Draw(Random& random, uint64_t first = 0) const {
    return std::min(random.Below((settings_.files + kStride - 1) / kStride) * kStride + first, settings_.files - 1);
  }
  uint64_t DirectoryOf(uint64_t file) const { return directories_.at(file / kNamesPerDirectory); }

  std::vector<uint64_t> DrawForUnlink() {
    const uint64_t count = std::min(settings_.operations, settings_.files / kStride / 2);
    std::unordered_set<uint64_t> files;
    while (files.size() < count) {
      files.insert(Draw(askers_[0].random, settings_.turn + 1));
    }
    return {files.begin(), files.end()};
  }

  void LearnDirectories() {
    for (uint64_t i = 0; i < DirectoriesOf(settings_.files); ++i) {
      directories_.push_back(Must(volume_->Lookup(*askers_[0].lane, fs::kRootInode, DirectoryName(i))).ino);
    }
  }

  void LookUp(Asker& asker, uint64_t file) {
    Must(volume_->Lookup(*asker.lane, DirectoryOf(file), FileName(file)).status());
  }

  void List(Asker& asker, uint64_t directory) {
    for (uint64_t cursor = 0;;) {
      const auto entries = Must(volume_->ReadDirectory(*asker.lane, directory, cursor, kListBytes, /*plus=*/true));
      if (entries.empty()) {
        return;
      }
      cursor = entries.back().cursor;
    }
  }

  std::string NewName(uint64_t i) const { return fmt::format("new-{}-{:08}.dat", settings_.turn, i); }

  void Create(Asker& asker, uint64_t i) {
    made_[i] = DirectoryOf(Draw(asker.random));
    Must(volume_->MakeNode(*asker.lane, {}, made_[i], NewName(i), S_IFREG | 0644, 0).status());
  }

  void UnlinkMade(Asker& asker, uint64_t i) { Must(volume_->Unlink(*asker.lane, made_[i], NewName(i))); }

  // Two look-ups each, by one thread: of a directory, and of a file in it.
  Cost Cold() {
    Asker& asker = askers_[0];
    uint64_t most = 0;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < settings_.cold; ++i) {
      const uint64_t file = Draw(asker.random);
      const uint64_t before = ReadBytesOf(server_);
      const auto directory =
          Must(volume_->Lookup(*asker.lane, fs::kRootInode, DirectoryName(file / kNamesPerDirectory)));
      const uint64_t between = ReadBytesOf(server_);
      Must(volume_->Lookup(*asker.lane, directory.ino, FileName(file)).status());
      const uint64_t after = ReadBytesOf(server_);
      most = std::max({most, between - before, after - between});
      sum += after - before;
    }
    return {.name = "cold look-up",
            .operations = 2 * settings_.cold,
            .read_bytes = static_cast<double>(sum) / static_cast<double>(2 * settings_.cold),
            .most_read_bytes = most};
  }

  // Shares the operations out to the askers; microseconds of each.
  std::vector<double> RunAll(uint64_t operations, const std::function<void(Asker&, uint64_t)>& operation) {
    std::vector<double> latencies(operations);
    std::atomic<uint64_t> next{0};
    std::vector<std::jthread> threads;
    for (Asker& asker : askers_) {
      threads.emplace_back([&] {
        for (uint64_t i = next++; i < operations; i = next++) {
          const auto begin = steady_clock::now();
          operation(asker, i);
          latencies[i] = std::chrono::duration<double, std::micro>(steady_clock::now() - begin).count();
        }
      });
    }
    threads.clear();
    return latencies;
  }

  Cost MeasureKind(const std::string& name, uint64_t operations,
                   const std::function<void(Asker&, uint64_t)>& operation) {
    const double server = term::ProcessorSecondsOf(server_);
    const double client = term::ProcessorSecondsOf(getpid());
    const uint64_t read = ReadBytesOf(server_);
    std::vector<double> latencies = RunAll(operations, operation);
    const auto each = [&](double value) { return value / static_cast<double>(operations); };
    Cost cost{.name = name, .operations = operations};
    cost.server_us = each(1e6 * (term::ProcessorSecondsOf(server_) - server));
    cost.client_us = each(1e6 * (term::ProcessorSecondsOf(getpid()) - client));
    cost.read_bytes = each(static_cast<double>(ReadBytesOf(server_) - read));
    std::sort(latencies.begin(), latencies.end());
    cost.p50_us = latencies[latencies.size() / 2];
    cost.p99_us = latencies[latencies.size() * 99 / 100];
    return cost;
  }

  const LoadSettings settings_;
  const std::unique_ptr<driver::Nic> nic_;
  const std::unique_ptr<fs::client::FileSystem> volume_;
  const pid_t server_;
  std::vector<Asker> askers_;
  std::vector<uint64_t> directories_;
  std::vector<uint64_t> made_ = std::vector<uint64_t>(settings_.operations);  // the directories of new names
};

}  // namespace

std::vector<Cost> Measure(const LoadSettings& settings) { return Load(settings).Run(); }

}  // namespace termfs::benchmarks::names
