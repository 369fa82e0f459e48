// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/term/region_server.h"

#include <mntent.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "benchmarks/must.h"
#include "benchmarks/term/control_group.h"
#include "benchmarks/term/open_service.h"
#include "driver/softnic/softnic.h"

namespace termfs::benchmarks::term {
namespace {

// Of a server beside what it holds of its region: code, stacks of coroutines, bounce buffers, messages. That of odp has
// its frames, too, and needs room for what it pages in on its way there, or it is killed for want of memory.
constexpr uint64_t kOwnBytes = uint64_t{48} << 20;
constexpr uint64_t kOwnBytesOfOdp = uint64_t{112} << 20;

enum class Order : uint32_t { kFlush, kAdopt, kCount };
struct Command {
  Order order;
  double dram_ratio = 0;
  uint64_t ssd_iops = 0;
};

// What the control groups of this process allow it.
class Limits {
 public:
  Limits(const Settings& settings, const Kind& kind)
      : kind_(kind),
        region_bytes_(settings.pattern.region_bytes),
        directory_(settings.directory),
        group_(settings.name + "-" + kind.name) {
    SetMemory(settings.dram_ratio);
    SetSsdReads(settings.ssd_iops);
    Must(group_.Enter());
  }

  void SetMemory(double dram_ratio) {
    if (kind_.through_page_cache()) {
      const auto tier = static_cast<uint64_t>(dram_ratio * static_cast<double>(region_bytes_));
      Must(group_.LimitMemory(tier + (kind_.region == driver::RegionKind::kOdp ? kOwnBytesOfOdp : kOwnBytes)));
    }
  }
  void SetSsdReads(uint64_t per_second) {
    if (per_second != ssd_reads_) {
      Must(group_.LimitSsdReads(directory_, per_second));
      Must(group_.Enter());
      ssd_reads_ = per_second;
    }
  }

 private:
  const Kind& kind_;
  const uint64_t region_bytes_;
  const std::string directory_;
  ControlGroup group_;
  uint64_t ssd_reads_ = 0;  // 0: no limit
};

bool HasTier(driver::RegionKind kind) {
  return kind == driver::RegionKind::kOdp || kind == driver::RegionKind::kRpcTiering ||
         kind == driver::RegionKind::kTerm;
}

// As a volume is served: on a tmpfs with huge pages.
tlib::server::TierOptions TierOf(const Kind& kind, const std::string& directory) {
  if (!HasTier(kind.region) && kind.region != driver::RegionKind::kPin) {
    return {};
  }
  return {.directory = directory + "/tier",
          .own_tmpfs = true,
          .record = directory + "/tier-record",
          .volume = "term_bench " + kind.name};
}

// What is mounted from now on ends with this process; file systems of others do not wait for it when they are
// unmounted.
void HaveOwnMounts() {
  if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    Die(ErrnoStatus("have mounts of its own"));
  }
  std::vector<std::string> others;
  const std::unique_ptr<FILE, int (*)(FILE*)> table(setmntent("/proc/self/mounts", "re"), endmntent);
  while (const mntent* entry = table == nullptr ? nullptr : getmntent(table.get())) {
    if (std::string_view(entry->mnt_type).starts_with("fuse.")) {
      others.emplace_back(entry->mnt_dir);
    }
  }
  for (const std::string& path : others) {
    umount2(path.c_str(), MNT_DETACH);
  }
}

// What is served, and how much of it memory holds.
class Serving {
 public:
  Serving(const Settings& settings, const Kind& kind, tlib::server::Server& server, Limits& limits)
      : pages_(settings.pages()),
        kind_(kind.region),
        server_(server),
        limits_(limits),
        dram_ratio_(settings.dram_ratio) {}

  void Obey(const Command& command) {
    switch (command.order) {
      case Order::kAdopt:
        limits_.SetSsdReads(command.ssd_iops);
        return SetDramRatio(command.dram_ratio);
      case Order::kFlush:
        return Must(server_.RunInCoroutine([&] {
          const tlib::server::PageRange all{.first = {0}, .count = pages_};
          return server_.region().Flush({&all, 1});
        }));
      case Order::kCount:
        return;
    }
  }

 private:
  // Never a tier that is larger than the limit.
  void SetDramRatio(double ratio) {
    if (ratio > dram_ratio_) {
      limits_.SetMemory(ratio);
    }
    if (ratio != dram_ratio_ && HasTier(kind_)) {
      Must(server_.SetDramRatio(ratio));
    }
    if (ratio < dram_ratio_) {
      limits_.SetMemory(ratio);
    }
    dram_ratio_ = ratio;
  }

  const uint64_t pages_;
  const driver::RegionKind kind_;
  tlib::server::Server& server_;
  Limits& limits_;
  double dram_ratio_;
};

void Serve(const Settings& settings, const Kind& kind, const std::string& directory, Limits& limits, int socket) {
  tlib::server::ServerOptions options;
  options.socket_directory = directory;
  options.workers = kind.through_page_cache() ? settings.blocking_workers : settings.workers;
  options.region.kind = kind.region;
  options.region.choice = kind.choice;
  options.region.device = directory + "/region";
  options.region.written_log = directory + "/written";
  options.region.pages = settings.pages();
  options.region.dram_ratio = settings.dram_ratio;
  options.region.odp_delay = settings.odp_delay;
  options.region.tier = TierOf(kind, directory);
  Must(tlib::server::Server::FormatRegion(options.region, nullptr));
  const auto nic = Must(driver::CreateSoftNic());
  OpenService service;
  const auto server = Must(tlib::server::Server::Start(*nic, options, service));
  const auto answer = [&] {
    const ServerCounts counts = CountsOf(*server);
    Child::Send(socket, std::as_bytes(std::span(&counts, 1)));
  };
  answer();
  Serving serving(settings, kind, *server, limits);
  Command command{};
  while (recv(socket, &command, sizeof(command), 0) == sizeof(command)) {
    serving.Obey(command);
    answer();
  }
}

}  // namespace

ServerCounts CountsOf(const tlib::server::Server& server) {
  std::map<std::string, uint64_t> values;
  for (const MetricValue& metric : server.Metrics()) {
    values[metric.name] = metric.value;
  }
  return {.ssd_reads = values["ssd_reads_total"],
          .ssd_writes = values["ssd_writes_total"],
          .promotions = values["promotions_total"],
          .evictions = values["evictions_total"],
          .frame_read_pages = values["frame_read_pages_total"],
          .faults = values["faults_total"]};
}

RegionServer::RegionServer(const Settings& settings, const Kind& kind, std::string directory)
    : directory_(std::move(directory)), child_("the server of " + kind.name, [&](int socket) {
        if (TierOf(kind, directory_).own_tmpfs) {
          HaveOwnMounts();
        }
        Limits limits(settings, kind);
        Child::Confine(settings.server_cpu);
        std::filesystem::create_directory(directory_);
        Serve(settings, kind, directory_, limits, socket);
      }) {
  child_.Hear<ServerCounts>();
}

void RegionServer::Flush() const {
  child_.Tell(Command{.order = Order::kFlush});
  child_.Hear<ServerCounts>();
}

void RegionServer::Adopt(double dram_ratio, uint64_t ssd_iops) const {
  child_.Tell(Command{.order = Order::kAdopt, .dram_ratio = dram_ratio, .ssd_iops = ssd_iops});
  child_.Hear<ServerCounts>();
}

ServerCounts RegionServer::Counts() const {
  child_.Tell(Command{.order = Order::kCount});
  return child_.Hear<ServerCounts>();
}

}  // namespace termfs::benchmarks::term
