// SPDX-License-Identifier: Apache-2.0
//
// Runs a function in a process of its own, which is expected to be killed at a crash point or to end by itself.
//
// Thread-safety: one thread; the calling process must have no other.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>

#include "base/check.h"
#include "base/unique_fd.h"

namespace termfs {

// What a killed process leaves to the next one: a T in memory that they share.
template <typename T>
class Shared {
 public:
  Shared() {
    void* const memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    TERMFS_CHECK(memory != MAP_FAILED);
    value_ = new (memory) T();
  }
  ~Shared() { munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T* operator->() { return value_; }
  T& operator*() { return *value_; }

 private:
  T* value_;
};

inline constexpr int kPatienceMs = 120 * 1000;

enum class HowItEnded { kByItself, kKilled, kFailed };

// Ends the process that RunInProcess made, from the midst of whatever runs in it.
[[noreturn]] inline void EndWith(const std::string& wrong) {
  if (!wrong.empty()) {
    std::fprintf(stderr, "%s\n", wrong.c_str());
    std::fflush(stderr);
  }
  _exit(wrong.empty() ? 0 : 1);  // nothing is stopped or cleaned up: that is as if it was killed here
}

// `body` returns what went wrong, which is printed; empty: nothing. A process that neither ends nor dies is killed and
// counts as failed.
inline HowItEnded RunInProcess(const std::function<std::string()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  TERMFS_CHECK(child >= 0);
  if (child == 0) {
    EndWith(body());
  }
  const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  TERMFS_CHECK(process.valid());
  pollfd end{.fd = process.get(), .events = POLLIN, .revents = 0};
  const bool hangs = poll(&end, 1, kPatienceMs) == 0;
  if (hangs) {
    std::fprintf(stderr, "process %d hangs\n", child);
    kill(child, SIGKILL);
  }
  int status = 0;
  TERMFS_CHECK(waitpid(child, &status, 0) == child);
  if (hangs) {
    return HowItEnded::kFailed;
  }
  if (WIFSIGNALED(status)) {
    return WTERMSIG(status) == SIGKILL ? HowItEnded::kKilled : HowItEnded::kFailed;
  }
  return WEXITSTATUS(status) == 0 ? HowItEnded::kByItself : HowItEnded::kFailed;
}

// From the environment: how many times as long as usual the crash tests run.
inline uint64_t CrashTestLength() {
  const char* const text = std::getenv("TERMFS_CRASH_LENGTH");
  const uint64_t length = text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
  return length == 0 ? 1 : length;
}

}  // namespace termfs
