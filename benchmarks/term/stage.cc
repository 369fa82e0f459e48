// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/term/stage.h"

#include <fcntl.h>

#include <algorithm>
#include <cstdio>

#include "base/random.h"
#include "base/unique_fd.h"
#include "benchmarks/must.h"

namespace termfs::benchmarks::term {
namespace {

constexpr uint64_t kMostScratchBytes = uint64_t{1} << 30;
constexpr uint64_t kChunkBytes = 1U << 20;

std::vector<std::string> DirectoriesOf(const Settings& settings, const std::string& scratch) {
  std::vector<std::string> directories;
  for (const Kind& kind : settings.kinds) {
    directories.push_back(scratch + "/" + kind.name);
  }
  return directories;
}

std::vector<std::unique_ptr<RegionServer>> StartServers(const Settings& settings,
                                                        const std::vector<std::string>& directories) {
  std::vector<std::unique_ptr<RegionServer>> servers;
  for (size_t kind = 0; kind < directories.size(); kind++) {
    servers.push_back(std::make_unique<RegionServer>(settings, settings.kinds[kind], directories[kind]));
  }
  return servers;
}

// Random ones: a file system may know zeros without asking the SSD.
void WriteRandomBytes(const std::string& path, uint64_t bytes, uint64_t seed) {
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  std::vector<uint64_t> chunk(kChunkBytes / sizeof(uint64_t));
  Random random(seed);
  std::generate(chunk.begin(), chunk.end(), [&] { return random(); });
  for (uint64_t at = 0; at < bytes; at += kChunkBytes) {
    if (write(file.get(), chunk.data(), kChunkBytes) != ssize_t{kChunkBytes}) {
      Die(ErrnoStatus("write " + path));
    }
  }
  if (fsync(file.get()) != 0) {
    Die(ErrnoStatus("write " + path));
  }
}

}  // namespace

Stage::Stage(const std::vector<Settings>& points, const std::string& scratch)
    : scratch_(scratch),
      group_(points.front().name + "-limit"),
      directory_(points.front().directory),
      directories_(DirectoriesOf(points.front(), scratch)),
      servers_(StartServers(points.front(), directories_)),
      busy_(points.front().busy > 0 ? std::make_unique<BusyProcessor>(points.front().server_cpu, points.front().busy)
                                    : nullptr),
      load_(points, directories_),
      written_bytes_(std::min(points.front().pattern.region_bytes, kMostScratchBytes)),
      seed_(points.front().pattern.seed) {
  for (size_t kind = 0; kind < servers_.size(); kind++) {
    std::fprintf(stderr, "term_bench: filling the region of %s\n", points.front().kinds[kind].name.c_str());
    load_.Fill(kind);
    servers_[kind]->Flush();
  }
}

void Stage::Adopt(const Settings& settings) {
  LimitSsdReads(settings.ssd_iops);
  for (const auto& server : servers_) {
    server->Adopt(settings.dram_ratio, settings.ssd_iops);
  }
}

void Stage::LimitSsdReads(uint64_t per_second) {
  if (per_second != ssd_iops_) {
    Must(group_.LimitSsdReads(directory_, per_second));
    Must(group_.Enter());
    ssd_iops_ = per_second;
  }
}

const std::vector<SsdRate>& Stage::SsdRates(const SsdLoad& load) {
  std::vector<SsdRate>& rates = ssd_rates_[{load.bytes, load.writes, ssd_iops_}];
  if (rates.empty()) {
    rates = MeasureSsd(SsdFile(load.writes), load);
  }
  return rates;
}

double Stage::SsdRateNow(SsdLoad load) {
  load.depth = BestOf(SsdRates(load)).depth;
  return MeasureSsdAt(SsdFile(load.writes), load).per_second;
}

std::string Stage::SsdFile(bool writes) {
  if (!writes) {
    return servers_.back()->device();
  }
  if (written_.empty()) {
    written_ = scratch_ + "/written";
    WriteRandomBytes(written_, written_bytes_, seed_);
  }
  return written_;
}

}  // namespace termfs::benchmarks::term
