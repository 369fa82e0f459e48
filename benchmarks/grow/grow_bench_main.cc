// SPDX-License-Identifier: Apache-2.0
//
// grow_bench: what a region costs as it grows, while memory, load and what is accessed stay the same.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "benchmarks/grow/growth.h"
#include "benchmarks/must.h"
#include "benchmarks/term/scratch.h"

namespace termfs::benchmarks::grow {
namespace {

std::string Check(const Settings& settings) {
  for (const uint64_t region : settings.regions) {
    if (region < settings.active || region % kPageSize != 0 || region <= settings.dram) {
      return "each of --regions is a size such as 4G, larger than --dram, and no less than --active";
    }
  }
  const bool whole = settings.dram % kPageSize == 0 && settings.active % kPageSize == 0;
  return whole && settings.active_pages() >= 1024 ? "" : "--dram and --active are whole pages, --active at least 4M";
}

std::optional<Settings> Parse(int argc, char** argv, int* exit_code) {
  Settings settings;
  std::vector<std::string> regions = {"1G", "4G", "16G", "64G"};
  int64_t period = settings.period.count();
  CLI::App app("One region, larger each time, with the same memory, load and pages that are accessed");
  app.add_option("--regions", regions, "sizes, by commas; the files are sparse")->delimiter(',');
  app.add_option("--dram", settings.dram, "size of the DRAM tier")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("256M");
  app.add_option("--active", settings.active, "how much is written and read, spread evenly over the region")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("512M");
  app.add_option("--period", period, "milliseconds between rounds of the promoter, access counts and pulls")
      ->check(CLI::Range(10, 60000))
      ->capture_default_str();
  app.add_option("--seconds", settings.seconds, "of each measurement of processor time")
      ->check(CLI::Range(0.1, 600.0))
      ->capture_default_str();
  app.add_option("--rate", settings.rate, "reads a second under load")
      ->check(CLI::Range(500, 1000000))
      ->capture_default_str();
  app.add_option("--starts", settings.starts, "of each kind that count, after one that does not; the median is printed")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--directory", settings.directory, "where regions go: on the SSD")->capture_default_str();
  app.add_option("--memory-directory", settings.memory_directory, "where their tiers go: on a tmpfs")
      ->capture_default_str();
  app.add_flag("--json", settings.json, "print JSON");
  try {
    app.parse(argc, argv);
    for (const std::string& region : regions) {
      std::string bytes = region;
      if (const std::string wrong = CLI::AsSizeValue(false)(bytes); !wrong.empty()) {
        throw CLI::ValidationError("--regions", wrong);
      }
      settings.regions.push_back(std::stoull(bytes));
    }
  } catch (const CLI::ParseError& error) {
    *exit_code = app.exit(error) == 0 ? 0 : 2;
    return std::nullopt;
  }
  settings.period = std::chrono::milliseconds(period);
  if (const std::string wrong = Check(settings); !wrong.empty()) {
    fmt::print(stderr, "grow_bench: {}; see --help\n", wrong);
    *exit_code = 2;
    return std::nullopt;
  }
  return settings;
}

std::string JsonOf(const StartCost& cost) {
  return fmt::format("{{\"ms\": {:.2f}, \"cpu_ms\": {:.2f}}}", cost.seconds * 1e3, cost.processor_seconds * 1e3);
}

std::string JsonOf(const ReadCost& cost) {
  return fmt::format("{{\"reads\": {}, \"hits\": {}, \"p50_us\": {:.3f}, \"p99_us\": {:.3f}}}", cost.reads, cost.hits,
                     static_cast<double>(cost.p50) / 1e3, static_cast<double>(cost.p99) / 1e3);
}

std::string JsonOf(const Memory& memory) {
  return fmt::format(
      "{{\"page_table\": {}, \"page_states\": {}, \"bitmap\": {}, \"frames\": {}, \"anonymous\": {}, \"other\": {}, "
      "\"kernel_tables\": {}, \"bookkeeping\": {}}}",
      memory.page_table, memory.page_states, memory.bitmap, memory.frames, memory.anonymous, memory.other,
      memory.kernel_tables, memory.bookkeeping());
}

std::string JsonOf(const Growth& growth) {
  return fmt::format(
      "{{\"region_bytes\": {}, \"make_ms\": {:.2f},\n  \"start\": {{\"fresh\": {}, \"full\": {}, \"killed\": {}}},\n  "
      "\"hit\": {}, \"miss\": {},\n  \"period_us\": {{\"server_alone\": {:.1f}, \"server_idle\": {:.1f}, "
      "\"client_idle\": {:.1f}, \"client_pulling\": {:.1f}, \"server_load\": {:.1f}, \"client_load\": {:.1f}}}, "
      "\"promotions\": {:.1f},\n  \"load\": {},\n  \"server\": {},\n  \"client\": {},\n  \"client_pulling\": {}}}",
      growth.region_bytes, growth.make_seconds * 1e3, JsonOf(growth.fresh), JsonOf(growth.full), JsonOf(growth.killed),
      JsonOf(growth.hit), JsonOf(growth.miss), growth.server_alone_us, growth.server_idle_us, growth.client_idle_us,
      growth.client_pulling_us, growth.server_load_us, growth.client_load_us, growth.promotions, JsonOf(growth.load),
      JsonOf(growth.server), JsonOf(growth.client), JsonOf(growth.client_pulling));
}

void PrintJson(const Settings& settings, const std::vector<Growth>& sizes) {
  fmt::print(
      "{{\"settings\": {{\"dram_bytes\": {}, \"active_bytes\": {}, \"period_ms\": {}, \"seconds\": {}, \"rate\": {}, "
      "\"starts\": {}, \"warm_up_starts\": {}}},\n \"sizes\": [",
      settings.dram, settings.active, settings.period.count(), settings.seconds, settings.rate, settings.starts,
      kWarmUpStarts);
  for (size_t i = 0; i < sizes.size(); i++) {
    fmt::print("{}\n {}", i == 0 ? "" : ",", JsonOf(sizes[i]));
  }
  fmt::print("]}}\n");
}

// The value for each size, and how many times that of the first one the last one is.
void PrintRow(const char* name, const std::vector<Growth>& sizes, const std::function<double(const Growth&)>& value) {
  fmt::print("{:<44}", name);
  for (const Growth& growth : sizes) {
    fmt::print(" {:>9.2f}", value(growth));
  }
  const double first = value(sizes.front());
  fmt::print(" {:>9}\n", first > 0 ? fmt::format("{:.2f}", value(sizes.back()) / first) : "-");
}

double HitShare(const ReadCost& cost) {
  return cost.reads == 0 ? 0 : static_cast<double>(cost.hits) / static_cast<double>(cost.reads);
}

void PrintTable(const std::vector<Growth>& sizes) {
  const auto row = [&](const char* name, const std::function<double(const Growth&)>& value) {
    PrintRow(name, sizes, value);
  };
  const auto per_page = [](uint64_t bytes, const Growth& growth) {
    return static_cast<double>(bytes) / (static_cast<double>(growth.region_bytes) / kPageSize);
  };
  row("region, GiB", [](const Growth& g) { return static_cast<double>(g.region_bytes) / (1 << 30); });
  row("start of a new region, ms", [](const Growth& g) { return g.fresh.seconds * 1e3; });
  row("start of a full one, ms", [](const Growth& g) { return g.full.seconds * 1e3; });
  row("start after a kill, ms", [](const Growth& g) { return g.killed.seconds * 1e3; });
  row("a hit, p50, us", [](const Growth& g) { return static_cast<double>(g.hit.p50) / 1e3; });
  row("  share of hits", [](const Growth& g) { return HitShare(g.hit); });
  row("a miss, p50, us", [](const Growth& g) { return static_cast<double>(g.miss.p50) / 1e3; });
  row("  share of hits", [](const Growth& g) { return HitShare(g.miss); });
  row("a period: server alone, us", [](const Growth& g) { return g.server_alone_us; });
  row("a period: server with an idle client, us", [](const Growth& g) { return g.server_idle_us; });
  row("a period: idle client, us", [](const Growth& g) { return g.client_idle_us; });
  row("a period: idle client that pulls, us", [](const Growth& g) { return g.client_pulling_us; });
  row("a period: server under load, us", [](const Growth& g) { return g.server_load_us; });
  row("a period: client under load, us", [](const Growth& g) { return g.client_load_us; });
  row("  promotions", [](const Growth& g) { return g.promotions; });
  row("  share of hits", [](const Growth& g) { return HitShare(g.load); });
  row("server's bookkeeping, bytes per page", [&](const Growth& g) { return per_page(g.server.bookkeeping(), g); });
  row("  the RNIC's page table", [&](const Growth& g) { return per_page(g.server.page_table, g); });
  row("  page states", [&](const Growth& g) { return per_page(g.server.page_states, g); });
  row("  present bitmap", [&](const Growth& g) { return per_page(g.server.bitmap, g); });
  row("  heats, owners, log, process, MiB", [](const Growth& g) { return g.server.anonymous / 1048576.0; });
  row("  the kernel's page tables, MiB", [](const Growth& g) { return g.server.kernel_tables / 1048576.0; });
  row("client's bookkeeping, MiB", [](const Growth& g) { return g.client.bookkeeping() / 1048576.0; });
  row("  of one that pulls, MiB", [](const Growth& g) { return g.client_pulling.bookkeeping() / 1048576.0; });
}

void Run(const Settings& settings, const std::string& directory, const std::string& memory_directory) {
  std::vector<Growth> sizes;
  for (const uint64_t region : settings.regions) {
    const std::string files = directory + "/" + std::to_string(region);
    const std::string memory = memory_directory + "/" + std::to_string(region);
    std::filesystem::create_directory(files);
    std::filesystem::create_directory(memory);
    fmt::print(stderr, "grow_bench: {} MiB\n", region >> 20);
    sizes.push_back(Measure(settings, region, files, memory));
    std::filesystem::remove_all(files);
    std::filesystem::remove_all(memory);
  }
  if (settings.json) {
    PrintJson(settings, sizes);
  } else {
    PrintTable(sizes);
  }
}

int Main(int argc, char** argv) {
  int exit_code = 0;
  const std::optional<Settings> settings = Parse(argc, argv, &exit_code);
  if (!settings) {
    return exit_code;
  }
  const std::string files = term::MakeScratch(settings->directory, "termfs-grow-bench");
  const std::string memory = term::MakeScratch(settings->memory_directory, "termfs-grow-bench");
  return term::RunAndPutAway(
      {files, memory}, [&] { Run(*settings, files, memory); }, [] {});
}

}  // namespace
}  // namespace termfs::benchmarks::grow

int main(int argc, char** argv) { return termfs::benchmarks::grow::Main(argc, argv); }
