// SPDX-License-Identifier: Apache-2.0
//
// file_bench: pieces of files of volumes that are served, and mounted, already, read and written by many processes:
// volumes beside one another, in turns. It writes files of its own into them. benchmarks/paper_files.py serves volumes
// of several kinds for it.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "base/page.h"
#include "benchmarks/files/reader.h"
#include "benchmarks/median.h"
#include "benchmarks/must.h"

namespace termfs::benchmarks::files {
namespace {

using term::DeviceBytes;
using term::Latencies;

struct Settings {
  std::vector<Place> places;
  std::vector<uint32_t> sizes = {4096, 16384};
  uint64_t mib = 256;
  uint32_t processes = 8;
  double theta = 0.99;
  double warmup = 2;
  double seconds = 2.4;
  uint32_t rounds = 3;
  bool writes = false;

  uint64_t files() const { return (mib << 20) / kFileBytes; }
};

// One kind of access, which all volumes are compared by.
struct Point {
  Way way;
  uint32_t bytes;
  bool writes;

  std::string label() const {
    return fmt::format("{}, {} {}K", way == Way::kMount ? "mount" : "library", writes ? "write" : "read", bytes >> 10);
  }
};

// Of one volume at one point, over all turns.
struct Sum {
  std::vector<double> rates;
  uint64_t accesses = 0;
  uint64_t read_pages = 0;
  uint64_t hit_pages = 0;
  double client_seconds = 0;  // of processor time, the mount's daemon included
  double server_seconds = 0;
  DeviceBytes device;
  Latencies latencies;
};

double DaemonSeconds(const Place& place) { return place.daemon > 0 ? term::ProcessorSecondsOf(place.daemon) : 0; }

void TakeTurn(Readers& readers, const Place& place, const Turn& turn, Sum& sum) {
  const double daemon = DaemonSeconds(place);
  const double server = term::ProcessorSecondsOf(place.server);
  const DeviceBytes device = term::DeviceBytesOf(place.server);
  readers.Run(turn);
  const DeviceBytes after = term::DeviceBytesOf(place.server);
  sum.device.read += after.read - device.read;
  sum.device.written += after.written - device.written;
  sum.server_seconds += term::ProcessorSecondsOf(place.server) - server;
  sum.client_seconds += DaemonSeconds(place) - daemon;
  double rate = 0;
  for (size_t i = 0; i < readers.processes(); i++) {
    const Tally& tally = readers.tally(i);
    rate += tally.rate;
    sum.accesses += tally.accesses;
    sum.read_pages += tally.read_pages;
    sum.hit_pages += tally.hit_pages;
    sum.client_seconds += tally.processor_seconds;
    sum.latencies.Add(tally.latencies);
  }
  sum.rates.push_back(rate);
}

// Of the pages read, those that were in memory: what the library counted where a READ tells whether a page is there;
// else by the bytes that the SSD read.
double HitRatio(const Place& place, const Sum& sum, const Point& point) {
  if (point.writes || sum.accesses == 0) {
    return 0;
  }
  if ((place.name == "term" || place.name == "pin") && sum.read_pages > 0) {
    return static_cast<double>(sum.hit_pages) / static_cast<double>(sum.read_pages);
  }
  const double read = static_cast<double>(sum.accesses) * point.bytes;
  return std::max(0.0, 1 - static_cast<double>(sum.device.read) / read);
}

std::string JsonOf(const Place& place, const Sum& sum, const Point& point) {
  const auto accesses = static_cast<double>(std::max<uint64_t>(1, sum.accesses));
  const auto microseconds = [&](double part) { return static_cast<double>(sum.latencies.Percentile(part)) / 1e3; };
  return fmt::format(
      "{{\"kind\": \"{}\", \"per_s\": {:.0f}, \"turns\": [{:.0f}], \"accesses\": {}, \"read_pages\": {}, "
      "\"hit_pages\": {}, \"call_us\": {{\"p50\": {:.2f}, \"p99\": {:.2f}, \"p999\": {:.2f}}}, \"hit_ratio\": {:.5f}, "
      "\"ssd_read_bytes\": {:.1f}, \"ssd_write_bytes\": {:.1f}, \"client_cpu_us\": {:.3f}, \"server_cpu_us\": {:.3f}}}",
      place.name, Median(sum.rates), fmt::join(sum.rates, ", "), sum.accesses, sum.read_pages, sum.hit_pages,
      microseconds(0.5), microseconds(0.99), microseconds(0.999), HitRatio(place, sum, point),
      static_cast<double>(sum.device.read) / accesses, static_cast<double>(sum.device.written) / accesses,
      sum.client_seconds * 1e6 / accesses, sum.server_seconds * 1e6 / accesses);
}

std::string JsonOf(const Settings& settings, const Point& point, const std::vector<Sum>& sums) {
  std::string kinds;
  for (size_t i = 0; i < sums.size(); i++) {
    kinds += (kinds.empty() ? "\n  " : ",\n  ") + JsonOf(settings.places[i], sums[i], point);
  }
  return fmt::format(
      "{{\"label\": \"{}\",\n \"settings\": {{\"region_bytes\": {}, \"access_bytes\": {}, \"write_share\": {}, "
      "\"theta\": {}, \"processes\": {}, \"warmup_s\": {}, \"seconds\": {}, \"rounds\": {}}},\n \"kinds\": [{}]}}",
      point.label(), settings.files() * kFileBytes, point.bytes, point.writes ? 1 : 0, settings.theta,
      settings.processes, settings.warmup, settings.seconds, settings.rounds, kinds);
}

std::vector<Point> PointsOf(const Settings& settings) {
  const bool mounted = std::all_of(settings.places.begin(), settings.places.end(),
                                   [](const Place& place) { return !place.mount.empty(); });
  std::vector<Point> points;
  for (const uint32_t bytes : settings.sizes) {  // outermost: another size has other hot pages
    for (const bool writes : {false, true}) {
      for (const Way way : {Way::kMount, Way::kLibrary}) {
        if ((mounted || way == Way::kLibrary) && (settings.writes || !writes)) {
          points.push_back({way, bytes, writes});
        }
      }
    }
  }
  return points;
}

void Measure(const Settings& settings) {
  Readers readers(settings.places, settings.files(), settings.processes);
  Turn turn{.theta = settings.theta, .seed = 0};
  uint32_t warm = 0;  // for pieces of that size
  std::string all;
  for (const Point& point : PointsOf(settings)) {
    turn.bytes = point.bytes;
    if (point.bytes != warm) {  // the hot pages are others
      turn.writes = false;
      turn.way = Way::kLibrary;
      turn.seconds = settings.warmup;
      turn.seed++;
      for (turn.place = 0; turn.place < settings.places.size(); turn.place++) {
        readers.Run(turn);
      }
      warm = point.bytes;
    }
    turn.way = point.way;
    turn.writes = point.writes;
    turn.seconds = settings.seconds / settings.rounds;
    std::vector<Sum> sums(settings.places.size());
    for (uint32_t round = 0; round < settings.rounds; round++) {
      turn.seed++;
      for (turn.place = 0; turn.place < settings.places.size(); turn.place++) {
        TakeTurn(readers, settings.places[turn.place], turn, sums[turn.place]);
        if (turn.writes) {
          readers.Sync(turn.place);  // no other's turn is disturbed by these writes, and no later read pays for them
        }
      }
    }
    all += (all.empty() ? "" : ",\n") + JsonOf(settings, point, sums);
  }
  fmt::print("[{}]\n", all);
}

// NAME:SERVER_PID:VOLUME[:DAEMON_PID:MOUNT]
Place ParsePlace(const std::string& text) {
  std::istringstream words(text);
  Place place;
  std::string server;
  std::string daemon;
  std::getline(words, place.name, ':');
  std::getline(words, server, ':');
  std::getline(words, place.volume, ':');
  std::getline(words, daemon, ':');
  std::getline(words, place.mount);
  place.server = std::atoi(server.c_str());
  place.daemon = std::atoi(daemon.c_str());
  if (place.server <= 0 || place.volume.empty() || (place.daemon <= 0) != place.mount.empty()) {
    throw CLI::ValidationError("--place", "is NAME:SERVER_PID:VOLUME or NAME:SERVER_PID:VOLUME:DAEMON_PID:MOUNT");
  }
  return place;
}

int Main(int argc, char** argv) {
  Settings settings;
  CLI::App app(
      "Processes that read pieces of files, on mounts and by the client library: volumes beside one another, in turns; "
      "prints JSON, a list with an object for each kind of access");
  app.add_option_function<std::vector<std::string>>(
         "--place",
         [&](const std::vector<std::string>& texts) {
           std::transform(texts.begin(), texts.end(), std::back_inserter(settings.places), ParsePlace);
         },
         "NAME:SERVER_PID:VOLUME[:DAEMON_PID:MOUNT]: a served volume, and where it is mounted; several")
      ->required();
  app.add_option("--size", settings.sizes, "bytes of a piece, several by commas")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(false))
      ->default_str("4K,16K");
  app.add_option("--mib", settings.mib, "of files in each volume, in files of 16 MiB")
      ->check(CLI::Range(16, 1 << 20))
      ->capture_default_str();
  app.add_option("--processes", settings.processes, "that read")->check(CLI::Range(1, 256))->capture_default_str();
  app.add_option("--theta", settings.theta, "of Zipf")->check(CLI::Range(0.0, 1.2))->capture_default_str();
  app.add_option("--warmup", settings.warmup, "seconds for each volume, when other pages get hot")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  app.add_option("--seconds", settings.seconds, "that count for each volume")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app.add_option("--rounds", settings.rounds, "in so many turns")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_flag("--writes", settings.writes, "measure writes, too");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  for (const uint32_t bytes : settings.sizes) {
    if (bytes < kPageSize || bytes > (1U << 20) || (bytes & (bytes - 1)) != 0) {
      std::fprintf(stderr, "file_bench: --size is a power of two from 4K to 1M; see --help\n");
      return 2;
    }
  }
  Measure(settings);
  return 0;
}

}  // namespace
}  // namespace termfs::benchmarks::files

int main(int argc, char** argv) { return termfs::benchmarks::files::Main(argc, argv); }
