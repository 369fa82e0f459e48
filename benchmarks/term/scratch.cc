// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/term/scratch.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "benchmarks/must.h"

namespace termfs::benchmarks::term {
namespace {

constexpr std::array<int, 3> kEnding = {SIGINT, SIGTERM, SIGHUP};
pid_t child = -1;

void PassOn(int) { kill(child, SIGKILL); }  // its children end with it

// Killed processes take a moment to end.
void Remove(const std::string& directory) {
  std::error_code error;
  for (int i = 0; i < 100 && std::filesystem::exists(directory, error); i++) {
    std::filesystem::remove_all(directory, error);
    std::this_thread::sleep_for(std::chrono::milliseconds(i > 0 ? 10 : 0));
  }
}

}  // namespace

std::string MakeScratch(const std::string& parent, const std::string& prefix) {
  std::string path = parent + "/" + prefix + "-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) {
    Die(ErrnoStatus("make a directory in " + parent));
  }
  return path;
}

int RunAndPutAway(const std::vector<std::string>& directories, const std::function<void()>& body,
                  const std::function<void()>& after) {
  sigset_t ending;
  sigemptyset(&ending);
  for (const int signal_number : kEnding) {
    sigaddset(&ending, signal_number);
  }
  sigset_t before;
  sigprocmask(SIG_BLOCK, &ending, &before);
  child = fork();
  if (child == 0) {
    sigprocmask(SIG_SETMASK, &before, nullptr);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    std::exit(0);
  }
  int status = -1;
  if (child > 0) {
    for (const int signal_number : kEnding) {
      std::signal(signal_number, PassOn);
    }
    sigprocmask(SIG_SETMASK, &before, nullptr);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    sigprocmask(SIG_BLOCK, &ending, nullptr);  // what follows is short
  } else {
    std::perror("start a process");
  }
  after();
  for (const std::string& directory : directories) {
    Remove(directory);
  }
  return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace termfs::benchmarks::term
