// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/names/load.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
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

class Load {
 public:
  explicit Load(const LoadSettings& settings)
      : settings_(settings),
        nic_(Must(driver::CreateSoftNic())),
        volume_(Must(fs::client::FileSystem::Connect(*nic_, settings.volume, OptionsOf(), nullptr))),
        lane_(Must(volume_->OpenLane())),
        server_(static_cast<pid_t>(Must(fs::client::GetStatus(settings.volume)).pid)),
        random_(settings.turn + 1) {}

  std::vector<Cost> Run() {
    std::vector<Cost> costs;
    if (settings_.cold > 0) {
      costs.push_back(Cold());
    }
    LearnDirectories();
    MeasureKind("look-up", settings_.operations / 10, [&](uint64_t) { LookUp(Draw()); });  // warms up
    costs.push_back(MeasureKind("look-up", settings_.operations, [&](uint64_t) { LookUp(Draw()); }));
    costs.push_back(MeasureKind("list", settings_.lists, [&](uint64_t) { List(Draw()); }));
    costs.push_back(MeasureKind("create", settings_.operations, [&](uint64_t i) { Create(i); }));
    costs.push_back(MeasureKind("unlink", std::min(settings_.operations, settings_.files / kStride / 2),
                                [&](uint64_t) { Unlink(); }));
    return costs;
  }

 private:
  // One of every sixteenth file, from `first`. Turns unlink what others do not ask for.
  uint64_t Draw(uint64_t first = 0) {
    return std::min(random_.Below((settings_.files + kStride - 1) / kStride) * kStride + first, settings_.files - 1);
  }
  uint64_t DirectoryOf(uint64_t file) const { return directories_.at(file / kNamesPerDirectory); }

  void LearnDirectories() {
    for (uint64_t i = 0; i < DirectoriesOf(settings_.files); ++i) {
      directories_.push_back(Must(volume_->Lookup(*lane_, fs::kRootInode, DirectoryName(i))).ino);
    }
  }

  void LookUp(uint64_t file) { Must(volume_->Lookup(*lane_, DirectoryOf(file), FileName(file)).status()); }

  void List(uint64_t file) {
    for (uint64_t cursor = 0;;) {
      const auto entries = Must(volume_->ReadDirectory(*lane_, DirectoryOf(file), cursor, kListBytes, /*plus=*/true));
      if (entries.empty()) {
        return;
      }
      cursor = entries.back().cursor;
    }
  }

  void Create(uint64_t i) {
    Must(volume_->MakeNode(*lane_, {}, DirectoryOf(Draw()), NewName(i), S_IFREG | 0644, 0).status());
  }

  std::string NewName(uint64_t i) const { return fmt::format("new-{}-{:08}.dat", settings_.turn, i); }

  void Unlink() {
    uint64_t file = Draw(settings_.turn + 1);
    while (!unlinked_.insert(file).second) {
      file = Draw(settings_.turn + 1);
    }
    Must(volume_->Unlink(*lane_, DirectoryOf(file), FileName(file)));
  }

  // Two look-ups each: of a directory, and of a file in it.
  Cost Cold() {
    uint64_t most = 0;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < settings_.cold; ++i) {
      const uint64_t file = Draw();
      const uint64_t before = ReadBytesOf(server_);
      const auto directory = Must(volume_->Lookup(*lane_, fs::kRootInode, DirectoryName(file / kNamesPerDirectory)));
      const uint64_t between = ReadBytesOf(server_);
      Must(volume_->Lookup(*lane_, directory.ino, FileName(file)).status());
      const uint64_t after = ReadBytesOf(server_);
      most = std::max({most, between - before, after - between});
      sum += after - before;
    }
    return {.name = "cold look-up",
            .operations = 2 * settings_.cold,
            .read_bytes = static_cast<double>(sum) / static_cast<double>(2 * settings_.cold),
            .most_read_bytes = most};
  }

  Cost MeasureKind(const std::string& name, uint64_t operations, const std::function<void(uint64_t)>& operation) {
    std::vector<double> latencies;
    const double server = term::ProcessorSecondsOf(server_);
    const double client = term::ProcessorSecondsOf(getpid());
    const uint64_t read = ReadBytesOf(server_);
    for (uint64_t i = 0; i < operations; ++i) {
      const auto begin = steady_clock::now();
      operation(i);
      latencies.push_back(std::chrono::duration<double, std::micro>(steady_clock::now() - begin).count());
    }
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
  const std::unique_ptr<fs::client::Lane> lane_;
  const pid_t server_;
  Random random_;
  std::vector<uint64_t> directories_;
  std::unordered_set<uint64_t> unlinked_;
};

}  // namespace

std::vector<Cost> Measure(const LoadSettings& settings) { return Load(settings).Run(); }

}  // namespace termfs::benchmarks::names
