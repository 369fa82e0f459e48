// SPDX-License-Identifier: Apache-2.0
//
// names_bench fill VOLUME FILES: makes empty files in a volume that is not served. names_bench load VOLUME FILES: what
// names cost the server of one that is. `benchmarks/growth` runs both.
#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "benchmarks/names/fill.h"
#include "benchmarks/names/load.h"

namespace termfs::benchmarks::names {
namespace {

void Print(const std::vector<Cost>& costs) {
  fmt::print("[");
  for (size_t i = 0; i < costs.size(); ++i) {
    const Cost& cost = costs[i];
    fmt::print(
        "{}{{\"name\": \"{}\", \"operations\": {}, \"server_us\": {:.2f}, \"client_us\": {:.2f}, \"p50_us\": {:.1f}, "
        "\"p99_us\": {:.1f}, \"read_bytes\": {:.0f}, \"most_read_bytes\": {}}}",
        i == 0 ? "" : ",\n ", cost.name, cost.operations, cost.server_us, cost.client_us, cost.p50_us, cost.p99_us,
        cost.read_bytes, cost.most_read_bytes);
  }
  fmt::print("]\n");
}

int Main(int argc, char** argv) {
  CLI::App app("What names cost in a volume of many files");
  app.require_subcommand(1);
  LoadSettings settings;
  CLI::App* const fill = app.add_subcommand("fill", "makes the files, in a volume that is not served");
  CLI::App* const load = app.add_subcommand("load", "measures, in a volume that is served; prints JSON");
  for (CLI::App* const command : {fill, load}) {
    command->add_option("volume", settings.volume, "the volume's directory")->required();
    command->add_option("files", settings.files, "how many")->required()->check(CLI::Range(1000, 1'000'000'000));
  }
  load->add_option("--operations", settings.operations, "of each kind")->capture_default_str();
  load->add_option("--lists", settings.lists, "of a directory")->capture_default_str();
  load->add_option("--threads", settings.threads, "that ask at a time")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  load->add_option("--cold", settings.cold, "look-ups before all else, counted one by one")->capture_default_str();
  load->add_flag("--walk", settings.walk, "list every directory first, which fills the server's memory");
  load->add_option("--turn", settings.turn, "which load of this volume; each creates and unlinks files of its own")
      ->check(CLI::Range(uint64_t{0}, kTurns - 1))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (fill->parsed()) {
    Fill(settings.volume, settings.files);
  } else {
    Print(Measure(settings));
  }
  return 0;
}

}  // namespace
}  // namespace termfs::benchmarks::names

int main(int argc, char** argv) { return termfs::benchmarks::names::Main(argc, argv); }
