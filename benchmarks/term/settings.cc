// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/term/settings.h"

#include <CLI/CLI.hpp>
#include <bit>
#include <limits>
#include <map>
#include <optional>

#include "base/page.h"

namespace termfs::benchmarks::term {
namespace {

constexpr uint32_t kMostAccess = 1U << 20;
constexpr uint32_t kMostInFlight = 1024;

const std::map<std::string, tlib::client::BitmapMode> kBitmaps = {{"live", tlib::client::BitmapMode::kLive},
                                                                  {"pulled", tlib::client::BitmapMode::kPulled},
                                                                  {"off", tlib::client::BitmapMode::kOff}};

std::string Check(const Settings& settings) {
  const PatternOptions& pattern = settings.pattern;
  if (pattern.region_bytes < (4U << 20) || pattern.region_bytes % kMostAccess != 0) {
    return "--region is a size such as 4G: whole MiB, at least 4";
  }
  if (pattern.access_bytes < 64 || pattern.access_bytes > kMostAccess || !std::has_single_bit(pattern.access_bytes)) {
    return "--size is a power of two from 64 to 1M";
  }
  if (uint64_t{settings.depth} * pattern.access_bytes > (uint64_t{64} << 20)) {
    return "--depth accesses of --size are more than 64 MiB";
  }
  if (pattern.region_bytes / pattern.access_bytes > std::numeric_limits<uint32_t>::max()) {
    return "--region holds too many accesses of --size";
  }
  if (pattern.distribution == Distribution::kMoving && pattern.move_at <= settings.warmup) {
    return "--move-at is after the warm-up";
  }
  if (pattern.distribution == Distribution::kMoving && settings.most_warmup > 0) {
    return "a hot set moves at a certain second, so that no kind may be warmed up longer: no --most-warmup";
  }
  return {};
}

template <typename T>
T Parsed(const std::string& option, Result<T> result) {
  if (!result.ok()) {
    throw CLI::ValidationError(option, result.status().ToString());
  }
  return std::move(result).value();
}

void AddPattern(CLI::App& app, Settings& settings) {
  app.add_option("--size", settings.pattern.access_bytes, "bytes of an access, 64 to 1M")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("4K");
  app.add_option("--writes", settings.write_share, "share of writes")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--distribution",
         [&](const std::string& name) {
           settings.pattern.distribution = Parsed("--distribution", ParseDistribution(name));
         },
         "uniform, zipf (scrambled), scan, moving (zipf whose hot set changes), tenants (zipf on one half by half "
         "of the threads, uniform on the other)")
      ->default_str(std::string(ToString(settings.pattern.distribution)));
  app.add_option("--theta", settings.pattern.theta, "of zipf")->check(CLI::Range(0.0, 1.2))->capture_default_str();
  app.add_option("--move-at", settings.pattern.move_at, "the second in which the hot set moves, warm-up included")
      ->check(CLI::NonNegativeNumber);
}

void AddTurns(CLI::App& app, Settings& settings) {
  app.add_option("--warmup", settings.warmup, "seconds for each kind before anything counts")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  app.add_option("--most-warmup", settings.most_warmup,
                 "seconds for a kind whose hit ratio still rises after --warmup; 0: none beyond it")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  app.add_option("--seconds", settings.seconds, "that count for each kind")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app.add_option("--rounds", settings.rounds, "in so many turns, the kinds one after the other")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag("!--no-limit", settings.limit, "do not measure the SSD and a miss alone");
}

// What may differ from point to point.
void AddPointOptions(CLI::App& app, Settings& settings) {
  AddPattern(app, settings);
  AddTurns(app, settings);
  app.add_option("--dram-ratio", settings.dram_ratio, "the part of the region that memory holds")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--threads", settings.threads, "of each client process")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--depth", settings.depth,
                 "reads in flight of each thread, of absent pages at most 32; its writes go one by one")
      ->check(CLI::Range(1U, kMostInFlight))
      ->capture_default_str();
  app.add_option("--pause-every", settings.pause_every,
                 "a thread sleeps for --pause after so many accesses, as one does that misses; 0: never")
      ->capture_default_str();
  app.add_option_function<uint32_t>(
         "--pause", [&](uint32_t pause) { settings.pause = std::chrono::microseconds(pause); }, "microseconds")
      ->check(CLI::Range(0, 1000000))
      ->default_str("0");
  app.add_option("--bitmap", settings.bitmap, "how term learns what is absent: live, pulled, off")
      ->transform(CLI::CheckedTransformer(kBitmaps));
  app.add_flag("!--no-heat", settings.heat, "clients do not say what they read, so term does not know what is hot");
  app.add_option("--ssd-iops", settings.ssd_iops,
                 "reads a second from the SSD that a server may make, by a control group: a slower SSD; 0: no limit")
      ->capture_default_str();
}

void AddProcesses(CLI::App& app, Settings& settings) {
  app.add_option("--processes", settings.processes, "client processes")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--workers", settings.workers, "of a server")->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--blocking-workers", settings.blocking_workers, "of a server whose workers wait for the SSD")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  auto* server_cpu = app.add_option("--server-cpu", settings.server_cpu, "servers run on this CPU only");
  app.add_option("--client-cpu", settings.client_cpu, "and clients on this one");
  app.add_option(
         "--busy", settings.busy,
         "take another turn of each kind in each round, while something else takes that share of the servers' CPU")
      ->check(CLI::Range(0.0, 1.0))
      ->needs(server_cpu);
}

void AddRegion(CLI::App& app, Settings& settings) {
  app.add_option_function<std::vector<std::string>>(
         "--kind",
         [&](const std::vector<std::string>& names) {
           settings.kinds.clear();
           for (const std::string& name : names) {
             settings.kinds.push_back(Parsed("--kind", ParseKind(name)));
           }
         },
         "pin, odp, rpc (mmap), rpc_buffer, rpc_direct, rpc_tiering, +hotspot (rpc_tiering that promotes), term; "
         "several by commas")
      ->delimiter(',')
      ->default_str("pin,odp,rpc,term");
  app.add_option("--region", settings.pattern.region_bytes, "size of the region")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("1G");
  app.add_option("--seed", settings.pattern.seed, "of all that is random")->capture_default_str();
  app.add_option_function<int64_t>(
         "--odp-delay", [&](int64_t delay) { settings.odp_delay = std::chrono::microseconds(delay); },
         "microseconds that a fault of odp takes beside the kernel's; the hardware of the TeRM paper: 127 + 74 + "
         "129 = 330")
      ->check(CLI::Range(0, 1000000))
      ->default_str("0");
  app.add_option("--directory", settings.directory, "where regions go: on the SSD")->capture_default_str();
  app.add_flag("--json", settings.json, "print JSON: a list, one result for each point");
}

// nullopt: as ParseSettings.
std::optional<Settings> ParsePoint(Settings settings, const std::string& words, int* exit_code) {
  CLI::App app("a point of term_bench");
  AddPointOptions(app, settings);
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    *exit_code = app.exit(error) == 0 ? 0 : 2;
    return std::nullopt;
  }
  if (const std::string wrong = Check(settings); !wrong.empty()) {
    std::fprintf(stderr, "term_bench: %s; see --help\n", wrong.c_str());
    *exit_code = 2;
    return std::nullopt;
  }
  return settings;
}

}  // namespace

Result<Kind> ParseKind(const std::string& name) {
  if (name == "+hotspot") {
    return Kind{name, driver::RegionKind::kRpcTiering, tlib::server::FrameChoice::kHeat};
  }
  const auto region = driver::ParseRegionKind(name);
  if (!region.ok()) {
    return Status::Error(EINVAL, "a kind is one of pin, odp, rpc, rpc_buffer, rpc_direct, rpc_tiering, +hotspot, term");
  }
  const bool fixed = *region == driver::RegionKind::kRpcTiering;
  return Kind{name, *region, fixed ? tlib::server::FrameChoice::kStatic : tlib::server::FrameChoice::kHeat};
}

std::vector<Settings> ParseSettings(int argc, char** argv, int* exit_code) {
  Settings settings;
  for (const char* name : {"pin", "odp", "rpc", "term"}) {
    settings.kinds.push_back(*ParseKind(name));
  }
  std::vector<std::string> points;
  CLI::App app(
      "One SSD-extended region at the level of the library, read and written by client processes: the kinds of memory "
      "region beside one another, in turns, beside the limit of this machine");
  AddRegion(app, settings);
  AddProcesses(app, settings);
  AddPointOptions(app, settings);
  app.add_option("--point", points,
                 "options of a measurement, such as \"--size 256 --threads 4\"; what it does not say is as on the "
                 "command line. Several are made one after the other on the same servers, which saves filling them: "
                 "--size, --writes, --distribution, --theta, --move-at, --dram-ratio, --threads, --depth, "
                 "--pause-every, --pause, "
                 "--bitmap, --no-heat, --ssd-iops, --warmup, --most-warmup, --seconds, --rounds, --no-limit")
      ->expected(1)
      ->take_all();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    *exit_code = app.exit(error) == 0 ? 0 : 2;
    return {};
  }
  if (points.empty()) {
    points.emplace_back();
  }
  std::vector<Settings> parsed;
  for (const std::string& words : points) {
    const std::optional<Settings> point = ParsePoint(settings, words, exit_code);
    if (!point) {
      return {};
    }
    parsed.push_back(*point);
  }
  return parsed;
}

}  // namespace termfs::benchmarks::term
