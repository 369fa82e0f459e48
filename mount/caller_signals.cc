// SPDX-License-Identifier: Apache-2.0
#include "mount/caller_signals.h"

#include <signal.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "mount/thread_status.h"

namespace termfs::mount {
namespace {

constexpr uint64_t BitOf(int number) { return uint64_t{1} << (number - 1); }

// Signals that end nothing when a program leaves them as they are: signal(7).
constexpr uint64_t kHarmless = BitOf(SIGCHLD) | BitOf(SIGCONT) | BitOf(SIGURG) | BitOf(SIGWINCH) | BitOf(SIGSTOP) |
                               BitOf(SIGTSTP) | BitOf(SIGTTIN) | BitOf(SIGTTOU);

bool Ask(pid_t thread, bool (*question)(std::string_view status), bool if_gone) {
  const Result<std::string> status = ReadThreadStatus(thread);
  if (!status.ok()) {
    return if_gone && (status.status().code() == ENOENT || status.status().code() == ESRCH);
  }
  return question(*status);
}

}  // namespace

bool EndingByStatus(std::string_view status) {
  const uint64_t pending = SetInStatus(status, "\nSigPnd:") | SetInStatus(status, "\nShdPnd:");
  const uint64_t unaffected = SetInStatus(status, "\nSigBlk:") | SetInStatus(status, "\nSigIgn:") |
                              SetInStatus(status, "\nSigCgt:") | kHarmless;
  return (pending & (~unaffected | BitOf(SIGKILL))) != 0;  // a thread of a process that ends has SIGKILL pending
}

bool InterruptedByStatus(std::string_view status) {
  const bool alone = status.find("\nThreads:\t1\n") != std::string_view::npos;
  const uint64_t pending = SetInStatus(status, "\nSigPnd:") | (alone ? SetInStatus(status, "\nShdPnd:") : 0);
  return (pending & ~(SetInStatus(status, "\nSigBlk:") | SetInStatus(status, "\nSigIgn:"))) != 0 ||
         EndingByStatus(status);
}

bool IsEnding(pid_t thread) { return Ask(thread, &EndingByStatus, false); }
bool MayBeEnding(pid_t thread) { return Ask(thread, &EndingByStatus, true); }
bool IsInterrupted(pid_t thread) { return Ask(thread, &InterruptedByStatus, false); }

}  // namespace termfs::mount
