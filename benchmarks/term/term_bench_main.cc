// SPDX-License-Identifier: Apache-2.0
//
// term_bench: one SSD-extended region at the level of the library, kinds of memory region beside one another. The
// experiment runs in a process of its own; this one waits for it, and puts away what it leaves however it ends.
#include <filesystem>

#include "benchmarks/term/control_group.h"
#include "benchmarks/term/experiment.h"
#include "benchmarks/term/report.h"
#include "benchmarks/term/scratch.h"

namespace termfs::benchmarks::term {
namespace {

void Run(const std::vector<Settings>& points, const std::string& scratch) {
  const std::vector<Results> results = Measure(points, scratch);
  if (points.front().json) {
    PrintJson(points, results);
    return;
  }
  for (size_t i = 0; i < points.size(); i++) {
    PrintTable(points[i], results[i]);
  }
}

int Main(int argc, char** argv) {
  int exit_code = 0;
  std::vector<Settings> points = ParseSettings(argc, argv, &exit_code);
  if (points.empty()) {
    return exit_code;
  }
  const std::string scratch = MakeScratch(points.front().directory, "termfs-term-bench");
  const std::string name = std::filesystem::path(scratch).filename();
  for (Settings& settings : points) {
    settings.name = name;
  }
  return RunAndPutAway(
      {scratch}, [&] { Run(points, scratch); }, [&] { ControlGroup::Sweep(name); });
}

}  // namespace
}  // namespace termfs::benchmarks::term

int main(int argc, char** argv) { return termfs::benchmarks::term::Main(argc, argv); }
