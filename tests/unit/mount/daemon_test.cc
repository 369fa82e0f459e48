// SPDX-License-Identifier: Apache-2.0
#include "mount/daemon.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>

namespace termfs::mount {
namespace {

// RunService in a process of its own, because it forks; its exit code, and what it printed to standard error.
struct Outcome {
  int code = -1;
  std::string printed;
};
Outcome RunApart(const std::function<Status(Readiness&)>& body) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    _exit(RunService(false, body));
  }
  close(ends[1]);
  Outcome outcome;
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  char buffer[512];
  for (ssize_t got = 0; (got = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    outcome.printed.append(buffer, static_cast<size_t>(got));
  }
  close(ends[0]);
  return outcome;
}

TEST(RunService, ReturnsOnceItServes) {
  int served[2];
  ASSERT_EQ(pipe(served), 0);
  const Outcome outcome = RunApart([&](Readiness& readiness) {
    readiness.Ok();
    return write(served[1], "x", 1) == 1 ? Status::Ok() : ErrnoStatus("write");
  });
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.printed, "");
  char byte = 0;
  EXPECT_EQ(read(served[0], &byte, 1), 1);  // it went on in the background
  close(served[0]);
  close(served[1]);
}

TEST(RunService, PassesOnTheError) {
  const Outcome outcome = RunApart([](Readiness&) { return Status::Errno(ENOSPC, "make room for the tier"); });
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.printed, "termfs: make room for the tier: No space left on device\n");
}

TEST(RunService, NoticesADeathBeforeItServes) {
  const Outcome outcome = RunApart([](Readiness&) -> Status { _exit(3); });
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.printed, "");
}

TEST(RunService, OutlivesWhoWaitedForIt) {
  int served[2];
  ASSERT_EQ(pipe(served), 0);
  RunApart([&](Readiness& readiness) {
    const pid_t waiting = getppid();
    kill(waiting, SIGKILL);
    while (getppid() == waiting) {
      sched_yield();
    }
    readiness.Ok();
    // Programs that it starts die of a broken pipe as they do elsewhere.
    pid_t child = 0;
    char* const words[] = {const_cast<char*>("sh"), const_cast<char*>("-c"), const_cast<char*>("kill -PIPE $$"),
                           nullptr};
    int status = 0;
    const bool dies = posix_spawnp(&child, words[0], nullptr, nullptr, words, environ) == 0 &&
                      waitpid(child, &status, 0) == child && WIFSIGNALED(status);
    return write(served[1], dies ? "d" : "x", 1) == 1 ? Status::Ok() : ErrnoStatus("write");
  });
  close(served[1]);
  char byte = 0;
  EXPECT_EQ(read(served[0], &byte, 1), 1) << "it went on";
  EXPECT_EQ(byte, 'd');
  close(served[0]);
}

TEST(BlockEndSignals, TurnsASignalIntoInput) {
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  const Result<UniqueFd> signals = BlockEndSignals();
  ASSERT_TRUE(signals.ok());
  pollfd ready{.fd = signals->get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&ready, 1, 0), 0);
  pthread_kill(pthread_self(), SIGTERM);
  EXPECT_EQ(poll(&ready, 1, 0), 1);
  char taken[256];
  EXPECT_GT(read(signals->get(), taken, sizeof(taken)), 0);  // not to be delivered when it is unblocked
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(BlockEndSignals, LeavesWhatIsIgnored_ButSigterm) {
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  std::map<int, struct sigaction> actions;
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  for (const int signal : {SIGHUP, SIGTERM}) {
    ASSERT_EQ(sigaction(signal, &ignore, &actions[signal]), 0);
  }
  const Result<UniqueFd> signals = BlockEndSignals();
  ASSERT_TRUE(signals.ok());
  pollfd ready{.fd = signals->get(), .events = POLLIN, .revents = 0};
  pthread_kill(pthread_self(), SIGHUP);
  EXPECT_EQ(poll(&ready, 1, 0), 0);
  for (const int signal : {SIGTERM, SIGINT}) {
    pthread_kill(pthread_self(), signal);
    EXPECT_EQ(poll(&ready, 1, 0), 1);
    signalfd_siginfo taken{};
    EXPECT_EQ(read(signals->get(), &taken, sizeof(taken)), static_cast<ssize_t>(sizeof(taken)));
    EXPECT_EQ(taken.ssi_signo, static_cast<uint32_t>(signal));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  for (const auto& [signal, action] : actions) {
    sigaction(signal, &action, nullptr);
  }
}

TEST(OpenStandardDescriptors, NothingElseGetsTheirNumbers) {
  for (int closed = 0; closed < 8; closed++) {
    const pid_t child = fork();
    if (child == 0) {
      for (int fd = 0; fd < 3; fd++) {
        if ((closed & 1 << fd) != 0) {
          close(fd);
        }
      }
      OpenStandardDescriptors();
      const bool all = fcntl(0, F_GETFD) == 0 && fcntl(1, F_GETFD) == 0 && fcntl(2, F_GETFD) == 0;
      _exit(all && open("/dev/null", O_RDONLY) > 2 ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << closed;
  }
}

}  // namespace
}  // namespace termfs::mount
