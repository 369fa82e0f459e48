// SPDX-License-Identifier: Apache-2.0
//
// Filebench's personalities, where there is no filebench: runs one in a directory, with plain system calls, and prints
// how often and how fast each operation was. What they do is in benchmarks/filebench/personalities.toml.
//
//   workloads DIRECTORY --personality NAME [--seconds N] [--threads N] [--files N] [--seed N] [--json]
#include <fmt/format.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "benchmarks/workloads/flow.h"

namespace termfs::benchmarks {
namespace {

std::atomic<bool> interrupted{false};

struct Settings {
  std::string directory;
  std::string personality;
  uint64_t seconds = 10;
  uint64_t threads = 0;
  uint64_t files = 0;
  uint64_t seed = 1;
  bool json = false;
};

// A new directory, removed with all that is in it.
class OwnDirectory {
 public:
  static Result<OwnDirectory> Make(const std::string& parent, const std::string& name) {
    std::string path = parent + "/" + name + ".XXXXXX";
    if (mkdtemp(path.data()) == nullptr) {
      return ErrnoStatus("make a directory in " + parent);
    }
    return OwnDirectory(std::move(path));
  }
  OwnDirectory(OwnDirectory&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  OwnDirectory& operator=(OwnDirectory&&) = delete;
  ~OwnDirectory() {
    std::error_code error;
    if (!path_.empty() && std::filesystem::remove_all(path_, error) == static_cast<std::uintmax_t>(-1)) {
      fmt::print(stderr, "workloads: {} stays: {}\n", path_, error.message());
    }
  }
  const std::string& path() const { return path_; }

 private:
  explicit OwnDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

struct Row {
  std::string_view name;
  uint64_t count = 0;
  uint64_t bytes = 0;
  const Histogram* latency = nullptr;

  double rate(double seconds) const { return static_cast<double>(count) / seconds; }
  double megabytes(double seconds) const { return static_cast<double>(bytes) / 1e6 / seconds; }
  double microseconds(double fraction) const { return static_cast<double>(latency->Percentile(fraction)) / 1e3; }
};

std::vector<Row> RowsOf(const Flow& flow) {
  std::vector<Row> rows;
  for (size_t i = 0; i < kActionNames.size(); i++) {
    const ActionCounts& counts = flow.counts(static_cast<Action>(i));
    if (counts.latency.count() > 0) {
      rows.push_back({kActionNames[i], counts.latency.count(), counts.bytes.value(), &counts.latency});
    }
  }
  return rows;
}

Row Sum(const std::vector<Row>& rows) {
  Row sum{.name = "all"};
  for (const Row& row : rows) {
    sum.count += row.count;
    sum.bytes += row.bytes;
  }
  return sum;
}

void PrintTable(const Settings& settings, const Flow& flow) {
  const double seconds = flow.seconds();
  const auto rows = RowsOf(flow);
  fmt::print("{}: {} turns in {:.2f} s with {} threads", settings.personality, flow.turns(), seconds, settings.threads);
  if (flow.turns_given_up() > 0) {
    fmt::print(", {} given up for want of files", flow.turns_given_up());
  }
  fmt::print("\n{:<14}{:>10}{:>12}{:>10}{:>12}{:>12}{:>12}\n", "", "count", "ops/s", "MB/s", "p50, us", "p99, us",
             "p99.9, us");
  for (const Row& row : rows) {
    fmt::print("{:<14}{:>10}{:>12.1f}{:>10.1f}{:>12.1f}{:>12.1f}{:>12.1f}\n", row.name, row.count, row.rate(seconds),
               row.megabytes(seconds), row.microseconds(0.5), row.microseconds(0.99), row.microseconds(0.999));
  }
  const Row sum = Sum(rows);
  fmt::print("{:<14}{:>10}{:>12.1f}{:>10.1f}\n", sum.name, sum.count, sum.rate(seconds), sum.megabytes(seconds));
}

std::string RateMembers(const Row& row, double seconds) {
  return fmt::format(R"("count": {}, "bytes": {}, "ops_per_second": {:.1f}, "mb_per_second": {:.3f})", row.count,
                     row.bytes, row.rate(seconds), row.megabytes(seconds));
}

void PrintJson(const Settings& settings, const Flow& flow) {
  const double seconds = flow.seconds();
  const auto rows = RowsOf(flow);
  fmt::print(R"({{"personality": "{}", "seconds": {:.3f}, "threads": {}, "turns": {}, "turns_given_up": {}, {})",
             settings.personality, seconds, settings.threads, flow.turns(), flow.turns_given_up(),
             RateMembers(Sum(rows), seconds));
  fmt::print(R"(, "operations": {{)");
  const char* separator = "";
  for (const Row& row : rows) {
    fmt::print(R"({}"{}": {{{}, "p50_us": {:.1f}, "p99_us": {:.1f}, "p999_us": {:.1f}}})", separator, row.name,
               RateMembers(row, seconds), row.microseconds(0.5), row.microseconds(0.99), row.microseconds(0.999));
    separator = ", ";
  }
  fmt::print("}}}}\n");
}

Status Run(Settings settings) {
  ASSIGN_OR_RETURN(auto personality, FindPersonality(settings.personality));
  ASSIGN_OR_RETURN(const auto directory, OwnDirectory::Make(settings.directory, personality.name));
  settings.threads = settings.threads != 0 ? settings.threads : personality.threads;
  Flow flow(std::move(personality), directory.path(), settings.files, settings.seed);
  RETURN_IF_ERROR(flow.Prepare());
  RETURN_IF_ERROR(flow.Run(settings.threads, std::chrono::seconds(settings.seconds), interrupted));
  if (settings.json) {
    PrintJson(settings, flow);
  } else {
    PrintTable(settings, flow);
  }
  return interrupted ? Status::Error(EINTR, "interrupted") : Status::Ok();
}

}  // namespace
}  // namespace termfs::benchmarks

int main(int argc, char** argv) {
  termfs::benchmarks::Settings settings;
  CLI::App app("Runs a personality of filebench in a directory, where it makes a new one and removes it at the end.");
  app.add_option("directory", settings.directory, "where")->required();
  app.add_option("--personality", settings.personality, "what")
      ->required()
      ->check(CLI::IsMember(termfs::benchmarks::PersonalityNames()));
  app.add_option("--seconds", settings.seconds, "at most")->check(CLI::Range(1, 86400));
  app.add_option("--threads", settings.threads, "the personality's own, if not given")->check(CLI::Range(1, 1000));
  app.add_option("--files", settings.files, "likewise")->check(CLI::Range(1, 10'000'000));
  app.add_option("--seed", settings.seed, "of sizes and choices");
  app.add_flag("--json", settings.json, "print one JSON object");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    signal(number, [](int) { termfs::benchmarks::interrupted = true; });
  }
  const termfs::Status status = termfs::benchmarks::Run(settings);
  if (!status.ok()) {
    std::fprintf(stderr, "workloads: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
