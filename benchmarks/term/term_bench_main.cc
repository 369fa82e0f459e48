// SPDX-License-Identifier: Apache-2.0
//
// term_bench: one SSD-extended region at the level of the library, kinds of memory region beside one another. The
// experiment runs in a process of its own; this one waits for it, and puts away what it leaves however it ends.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "benchmarks/must.h"
#include "benchmarks/term/experiment.h"
#include "benchmarks/term/memory_limit.h"
#include "benchmarks/term/report.h"

namespace termfs::benchmarks::term {
namespace {

pid_t experiment = -1;

void PassOn(int) { kill(experiment, SIGKILL); }  // its children end with it

[[noreturn]] void Run(const Settings& settings, const std::string& scratch) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const Results results = Measure(settings, scratch);
  (settings.json ? PrintJson : PrintTable)(settings, results);
  std::exit(0);
}

int Main(int argc, char** argv) {
  int exit_code = 0;
  std::optional<Settings> settings = ParseSettings(argc, argv, &exit_code);
  if (!settings) {
    return exit_code;
  }
  std::string scratch = settings->directory + "/termfs-term-bench-XXXXXX";
  if (mkdtemp(scratch.data()) == nullptr) {
    Die(ErrnoStatus("make a directory in " + settings->directory));
  }
  settings->name = std::filesystem::path(scratch).filename();
  experiment = fork();
  if (experiment == 0) {
    Run(*settings, scratch);
  }
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    std::signal(signal_number, PassOn);
  }
  int status = 0;
  while (waitpid(experiment, &status, 0) < 0 && errno == EINTR) {
  }
  MemoryLimit::Sweep(settings->name);
  std::filesystem::remove_all(scratch);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace
}  // namespace termfs::benchmarks::term

int main(int argc, char** argv) { return termfs::benchmarks::term::Main(argc, argv); }
