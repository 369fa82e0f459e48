// SPDX-License-Identifier: Apache-2.0
#include "mount/caller_signals.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <string>

#include "base/unique_fd.h"

namespace termfs::mount {
namespace {

constexpr uint64_t BitOf(int number) { return uint64_t{1} << (number - 1); }

// Signals that end nothing when a program leaves them as they are: signal(7).
constexpr uint64_t kHarmless = BitOf(SIGCHLD) | BitOf(SIGCONT) | BitOf(SIGURG) | BitOf(SIGWINCH) | BitOf(SIGSTOP) |
                               BitOf(SIGTSTP) | BitOf(SIGTTIN) | BitOf(SIGTTOU);

// The set in the line that begins with `name`; empty when there is none.
uint64_t SetOf(std::string_view status, std::string_view name) {
  const size_t at = status.find(name);
  if (at == std::string_view::npos) {
    return 0;
  }
  status.remove_prefix(at + name.size());
  status.remove_prefix(std::min(status.find_first_not_of(" \t"), status.size()));
  uint64_t set = 0;
  std::from_chars(status.data(), status.data() + status.size(), set, 16);
  return set;
}

bool Ask(pid_t thread, bool (*question)(std::string_view status)) {
  const UniqueFd file(open(("/proc/" + std::to_string(thread) + "/status").c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) {
    return errno == ENOENT || errno == ESRCH;
  }
  char text[8192];
  size_t size = 0;
  while (size < sizeof(text)) {
    const ssize_t got = read(file.get(), text + size, sizeof(text) - size);
    if (got < 0 && errno == ESRCH) {
      return true;
    }
    if (got <= 0) {
      break;
    }
    size += static_cast<size_t>(got);
  }
  return question({text, size});
}

}  // namespace

bool EndingByStatus(std::string_view status) {
  const uint64_t pending = SetOf(status, "\nSigPnd:") | SetOf(status, "\nShdPnd:");
  const uint64_t unaffected =
      SetOf(status, "\nSigBlk:") | SetOf(status, "\nSigIgn:") | SetOf(status, "\nSigCgt:") | kHarmless;
  return (pending & (~unaffected | BitOf(SIGKILL))) != 0;  // a thread of a process that ends has SIGKILL pending
}

bool InterruptedByStatus(std::string_view status) {
  const bool alone = status.find("\nThreads:\t1\n") != std::string_view::npos;
  const uint64_t pending = SetOf(status, "\nSigPnd:") | (alone ? SetOf(status, "\nShdPnd:") : 0);
  return (pending & ~(SetOf(status, "\nSigBlk:") | SetOf(status, "\nSigIgn:"))) != 0 || EndingByStatus(status);
}

bool IsEnding(pid_t thread) { return Ask(thread, &EndingByStatus); }
bool IsInterrupted(pid_t thread) { return Ask(thread, &InterruptedByStatus); }

}  // namespace termfs::mount
