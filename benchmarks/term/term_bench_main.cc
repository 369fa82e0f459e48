// SPDX-License-Identifier: Apache-2.0
//
// term_bench: one SSD-extended region at the level of the library, kinds of memory region beside one another. The
// experiment runs in a process of its own; this one waits for it, and puts away what it leaves however it ends.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "benchmarks/must.h"
#include "benchmarks/term/control_group.h"
#include "benchmarks/term/experiment.h"
#include "benchmarks/term/report.h"

namespace termfs::benchmarks::term {
namespace {

pid_t experiment = -1;

void PassOn(int) { kill(experiment, SIGKILL); }  // its children end with it

[[noreturn]] void Run(const std::vector<Settings>& points, const std::string& scratch) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::vector<Results> results = Measure(points, scratch);
  if (points.front().json) {
    PrintJson(points, results);
  } else {
    for (size_t i = 0; i < points.size(); i++) {
      PrintTable(points[i], results[i]);
    }
  }
  std::exit(0);
}

int Main(int argc, char** argv) {
  int exit_code = 0;
  std::vector<Settings> points = ParseSettings(argc, argv, &exit_code);
  if (points.empty()) {
    return exit_code;
  }
  const std::string& directory = points.front().directory;
  std::string scratch = directory + "/termfs-term-bench-XXXXXX";
  if (mkdtemp(scratch.data()) == nullptr) {
    Die(ErrnoStatus("make a directory in " + directory));
  }
  const std::string name = std::filesystem::path(scratch).filename();
  for (Settings& settings : points) {
    settings.name = name;
  }
  sigset_t ending;
  sigemptyset(&ending);
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    sigaddset(&ending, signal_number);
  }
  sigset_t before;
  sigprocmask(SIG_BLOCK, &ending, &before);
  experiment = fork();
  if (experiment == 0) {
    sigprocmask(SIG_SETMASK, &before, nullptr);
    Run(points, scratch);
  }
  int status = 0;
  if (experiment > 0) {
    for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
      std::signal(signal_number, PassOn);
    }
    sigprocmask(SIG_SETMASK, &before, nullptr);
    while (waitpid(experiment, &status, 0) < 0 && errno == EINTR) {
    }
    sigprocmask(SIG_BLOCK, &ending, nullptr);  // what follows is short
  } else {
    status = -1;
    std::perror("term_bench: start a process");
  }
  ControlGroup::Sweep(name);
  std::error_code error;
  for (int i = 0; i < 100 && std::filesystem::exists(scratch, error); i++) {  // killed processes take a moment to end
    std::filesystem::remove_all(scratch, error);
    std::this_thread::sleep_for(std::chrono::milliseconds(i > 0 ? 10 : 0));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace
}  // namespace termfs::benchmarks::term

int main(int argc, char** argv) { return termfs::benchmarks::term::Main(argc, argv); }
