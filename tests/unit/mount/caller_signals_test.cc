// SPDX-License-Identifier: Apache-2.0
#include "mount/caller_signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace termfs::mount {
namespace {

std::string StatusOf(int number, const std::string& pending, bool caught, bool blocked, bool ignored) {
  char bits[17];
  std::snprintf(bits, sizeof(bits), "%016lx", 1UL << (number - 1));
  const auto set = [&](const char* name, bool in) {
    return std::string(name) + ":\t" + (in ? bits : "0000000000000000") + "\n";
  };
  return "Name:\tx\nState:\tD (disk sleep)\nThreads:\t1\nSigQ:\t1/96365\n" + set("SigPnd", pending == "thread") +
         set("ShdPnd", pending == "process") + set("SigBlk", blocked) + set("SigIgn", ignored) + set("SigCgt", caught) +
         "CapInh:\t0000000000000000\n";
}

TEST(CallerSignals, EndingByStatus_OnlyWhatEndsTheProgram) {
  for (const char* pending : {"thread", "process"}) {
    EXPECT_TRUE(EndingByStatus(StatusOf(SIGKILL, pending, false, false, false)));
    for (const int number : {SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGALRM, SIGSEGV, SIGUSR1}) {
      EXPECT_TRUE(EndingByStatus(StatusOf(number, pending, false, false, false))) << number;
      EXPECT_FALSE(EndingByStatus(StatusOf(number, pending, true, false, false))) << number << " is handled";
      EXPECT_FALSE(EndingByStatus(StatusOf(number, pending, false, true, false))) << number << " is blocked";
      EXPECT_FALSE(EndingByStatus(StatusOf(number, pending, false, false, true))) << number << " is ignored";
    }
    for (const int number : {SIGCHLD, SIGCONT, SIGURG, SIGWINCH, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU}) {
      EXPECT_FALSE(EndingByStatus(StatusOf(number, pending, false, false, false))) << number;
    }
  }
  EXPECT_FALSE(EndingByStatus(StatusOf(SIGKILL, "nobody", true, true, true)));
}

TEST(CallerSignals, EndingByStatus_Nonsense_IsNotEnding) {
  for (const char* text : {"", "\n", "\nSigPnd:", "\nSigPnd:\tzzz\n", "SigPnd:\t0000000000000100\n"}) {
    EXPECT_FALSE(EndingByStatus(text)) << text;
  }
}

TEST(CallerSignals, InterruptedByStatus_AnySignalThatTheThreadWillTake) {
  const auto status = [](const char* pending, const char* shared, const char* blocked, const char* ignored,
                         int threads) {
    return "Name:\tx\nThreads:\t" + std::to_string(threads) + "\nSigPnd:\t" + pending + "\nShdPnd:\t" + shared +
           "\nSigBlk:\t" + blocked + "\nSigIgn:\t" + ignored + "\nSigCgt:\tffffffffffffffff\n";
  };
  EXPECT_TRUE(InterruptedByStatus(status("200", "0", "0", "0", 8)));
  EXPECT_TRUE(InterruptedByStatus(status("0", "200", "0", "0", 1)));
  EXPECT_FALSE(InterruptedByStatus(status("0", "200", "0", "0", 8))) << "another thread may take it";
  EXPECT_FALSE(InterruptedByStatus(status("200", "200", "200", "0", 1)));
  EXPECT_FALSE(InterruptedByStatus(status("200", "200", "0", "200", 1)));
  EXPECT_FALSE(InterruptedByStatus(status("0", "0", "0", "0", 1)));
  EXPECT_TRUE(InterruptedByStatus(status("0", "100", "0", "0", 8))) << "SIGKILL ends all";
}

TEST(CallerSignals, IsEnding_LiveProcessAndGoneProcess) {
  EXPECT_FALSE(IsEnding(gettid()));
  EXPECT_FALSE(MayBeEnding(gettid()));
  const pid_t child = fork();
  if (child == 0) {
    _exit(0);
  }
  ASSERT_GT(child, 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(IsEnding(child)) << "it may have left an asynchronous request to others";
  EXPECT_FALSE(IsInterrupted(child));
  EXPECT_TRUE(MayBeEnding(child));
}

TEST(CallerSignals, IsEnding_PendingButBlocked_UntilItIsUnblocked) {
  sigset_t set;
  sigset_t before;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &set, &before), 0);
  ASSERT_EQ(raise(SIGUSR1), 0);
  EXPECT_FALSE(IsEnding(gettid()));
  const timespec none{};
  EXPECT_EQ(sigtimedwait(&set, nullptr, &none), SIGUSR1);
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
}

}  // namespace
}  // namespace termfs::mount
