// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/grow/growth.h"

#include <algorithm>
#include <functional>
#include <thread>
#include <vector>

#include "benchmarks/grow/sparse_region.h"
#include "benchmarks/median.h"

namespace termfs::benchmarks::grow {
namespace {

using tlib::client::BitmapMode;
using tlib::server::RegionOptions;

constexpr std::chrono::milliseconds kSettle{500};  // what was begun has ended

// `end` ends the server that was started. The first kWarmUpStarts do not count.
StartCost MedianStart(const Settings& settings, const RegionOptions& options, const std::string& directory,
                      const std::function<void(const GrowServer&)>& end) {
  std::vector<double> seconds;
  std::vector<double> processor_seconds;
  for (uint32_t i = 0; i < kWarmUpStarts + settings.starts; i++) {
    const GrowServer server(options, directory);
    if (i >= kWarmUpStarts) {
      seconds.push_back(server.start_cost().seconds);
      processor_seconds.push_back(server.start_cost().processor_seconds);
    }
    end(server);
  }
  return {.seconds = Median(seconds), .processor_seconds = Median(processor_seconds)};
}

// Microseconds of processor time in a period of each process, while `meanwhile` runs.
std::vector<double> PerPeriod(const Settings& settings, const std::vector<const term::Child*>& processes,
                              const std::function<void()>& meanwhile) {
  std::vector<double> spent;
  for (const term::Child* process : processes) {
    spent.push_back(-process->ProcessorSeconds());
  }
  meanwhile();
  for (size_t i = 0; i < processes.size(); i++) {
    spent[i] = (spent[i] + processes[i]->ProcessorSeconds()) * 1e6 / settings.periods();
  }
  return spent;
}

void MeasureIdle(const Settings& settings, const GrowServer& server, const std::string& directory, Growth& growth) {
  const auto rest = [&] { std::this_thread::sleep_for(std::chrono::duration<double>(settings.seconds)); };
  growth.server_alone_us = PerPeriod(settings, {&server.process()}, rest)[0];
  const GrowClient client(settings, BitmapMode::kPulled, directory);
  growth.client_pulling_us = PerPeriod(settings, {&client.process()}, rest)[0];
  growth.client_pulling = MemoryOf(client.process().pid());
}

void MeasureLoad(const Settings& settings, const GrowServer& server, const GrowClient& client, Growth& growth) {
  const uint64_t promotions = server.Counts().promotions;
  const std::vector<double> load =
      PerPeriod(settings, {&server.process(), &client.process()}, [&] { growth.load = client.Load(); });
  growth.server_load_us = load[0];
  growth.client_load_us = load[1];
  growth.promotions = static_cast<double>(server.Counts().promotions - promotions) / settings.periods();
}

// Ends with a server that was killed.
void MeasureServing(const Settings& settings, const RegionOptions& options, const std::string& directory,
                    Growth& growth) {
  const GrowServer server(options, directory);
  {
    const GrowClient client(settings, BitmapMode::kLive, directory);
    client.Fill();
    client.Warm();
    std::this_thread::sleep_for(kSettle);
    growth.hit = client.ReadHot();
    growth.miss = client.ReadCold();
    const std::vector<double> idle = PerPeriod(settings, {&server.process(), &client.process()}, [&] {
      std::this_thread::sleep_for(std::chrono::duration<double>(settings.seconds));
    });
    growth.server_idle_us = idle[0];
    growth.client_idle_us = idle[1];
    MeasureLoad(settings, server, client, growth);
    growth.client = MemoryOf(client.process().pid());
  }
  std::this_thread::sleep_for(kSettle);
  MeasureIdle(settings, server, directory, growth);
  growth.server = MemoryOf(server.process().pid());
  server.Kill();
}

}  // namespace

Growth Measure(const Settings& settings, uint64_t region_bytes, const std::string& directory,
               const std::string& memory_directory) {
  const RegionOptions options = OptionsFor(settings, region_bytes, directory, memory_directory);
  const auto stop = [](const GrowServer&) {};
  Growth growth;
  growth.region_bytes = region_bytes;
  const auto began = std::chrono::steady_clock::now();
  MakeSparse(options);
  growth.make_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  growth.fresh = MedianStart(settings, options, directory, stop);
  {
    const term::Child marker("what marks pages as written", [&](int socket) {
      MarkAllWritten(options);
      const char done = 0;
      term::Child::Send(socket, std::as_bytes(std::span(&done, 1)));
    });
    marker.Hear<char>();
  }
  growth.full = MedianStart(settings, options, directory, stop);
  MeasureServing(settings, options, directory, growth);
  growth.killed = MedianStart(settings, options, directory, [](const GrowServer& server) { server.Kill(); });
  return growth;
}

}  // namespace termfs::benchmarks::grow
