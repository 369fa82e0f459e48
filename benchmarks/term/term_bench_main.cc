// SPDX-License-Identifier: Apache-2.0
//
// term_bench: one SSD-extended region at the level of the library, kinds of memory region beside one another. The
// experiment runs in a process of its own; this one waits for it, and puts away what it leaves however it ends.
#include <filesystem>

#include "benchmarks/must.h"
#include "benchmarks/term/control_group.h"
#include "benchmarks/term/experiment.h"
#include "benchmarks/term/report.h"
#include "benchmarks/term/scratch.h"

namespace termfs::benchmarks::term {
namespace {

void Run(const Settings& settings, const std::string& scratch) {
  if (settings.ssd_iops > 0) {  // what it measures of the SSD is that, too
    ControlGroup group(settings.name + "-limit");
    Must(group.LimitSsdReads(settings.directory, settings.ssd_iops));
    Must(group.Enter());
  }
  const Results results = Measure(settings, scratch);
  (settings.json ? PrintJson : PrintTable)(settings, results);
}

int Main(int argc, char** argv) {
  int exit_code = 0;
  std::optional<Settings> settings = ParseSettings(argc, argv, &exit_code);
  if (!settings) {
    return exit_code;
  }
  const std::string scratch = MakeScratch(settings->directory, "termfs-term-bench");
  settings->name = std::filesystem::path(scratch).filename();
  return RunAndPutAway(
      {scratch}, [&] { Run(*settings, scratch); }, [&] { ControlGroup::Sweep(settings->name); });
}

}  // namespace
}  // namespace termfs::benchmarks::term

int main(int argc, char** argv) { return termfs::benchmarks::term::Main(argc, argv); }
