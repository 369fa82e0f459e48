// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/term/region_server.h"

#include <sys/socket.h>

#include <filesystem>
#include <map>

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

enum class Order : uint32_t { kFlush, kSetDramRatio, kCount };
struct Command {
  Order order;
  double value;
};

void Obey(tlib::server::Server& server, const Command& command, uint64_t pages) {
  switch (command.order) {
    case Order::kSetDramRatio:
      return Must(server.SetDramRatio(command.value));
    case Order::kFlush:
      return Must(server.RunInCoroutine([&] {
        const tlib::server::PageRange all{.first = {0}, .count = pages};
        return server.region().Flush({&all, 1});
      }));
    case Order::kCount:
      return;
  }
}

void Serve(const Settings& settings, const Kind& kind, const std::string& directory, int socket) {
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
  Must(tlib::server::Server::FormatRegion(options.region, nullptr));
  const auto nic = Must(driver::CreateSoftNic());
  OpenService service;
  const auto server = Must(tlib::server::Server::Start(*nic, options, service));
  const auto answer = [&] {
    const ServerCounts counts = CountsOf(*server);
    Child::Send(socket, std::as_bytes(std::span(&counts, 1)));
  };
  answer();
  Command command{};
  while (recv(socket, &command, sizeof(command), 0) == sizeof(command)) {
    Obey(*server, command, settings.pages());
    answer();
  }
}

void EnterLimits(const Settings& settings, const Kind& kind) {
  ControlGroup group(settings.name + "-" + kind.name);
  if (kind.through_page_cache()) {
    const auto tier = static_cast<uint64_t>(settings.dram_ratio * static_cast<double>(settings.pattern.region_bytes));
    Must(group.LimitMemory(tier + (kind.region == driver::RegionKind::kOdp ? kOwnBytesOfOdp : kOwnBytes)));
  }
  if (settings.ssd_iops > 0) {
    Must(group.LimitSsdReads(settings.directory, settings.ssd_iops));
  }
  Must(group.Enter());
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
        EnterLimits(settings, kind);
        Child::Confine(settings.server_cpu);
        std::filesystem::create_directory(directory_);
        Serve(settings, kind, directory_, socket);
      }) {
  child_.Hear<ServerCounts>();
}

void RegionServer::Flush() const {
  child_.Tell(Command{Order::kFlush, 0});
  child_.Hear<ServerCounts>();
}

void RegionServer::SetDramRatio(double ratio) const {
  child_.Tell(Command{Order::kSetDramRatio, ratio});
  child_.Hear<ServerCounts>();
}

ServerCounts RegionServer::Counts() const {
  child_.Tell(Command{Order::kCount, 0});
  return child_.Hear<ServerCounts>();
}

}  // namespace termfs::benchmarks::term
