// SPDX-License-Identifier: Apache-2.0
#include "mount/daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdio>

#include "base/log.h"
#include "mount/resources.h"

namespace termfs::mount {
namespace {

constexpr char kServes = '+';
constexpr char kFails = '-';
constexpr int kPatienceMs = 10 * 60 * 1000;  // for a server that has much to recover

void PrintError(const std::string& text) { std::fprintf(stderr, "termfs: %s\n", text.c_str()); }

// All of `text`; a waiting command that has gone away is no concern.
void WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t put = write(fd, text.data(), text.size());
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put <= 0) {
      return;
    }
    text.remove_prefix(static_cast<size_t>(put));
  }
}

// What the service wrote until it ended, or said that it serves.
std::string ReadVerdict(int fd, bool& ended) {
  std::string text;
  char buffer[512];
  while (text.empty() || text[0] != kServes) {
    pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
    const int polled = poll(&ready, 1, kPatienceMs);
    if (polled < 0 && errno == EINTR) {
      continue;
    }
    const ssize_t got = polled > 0 ? read(fd, buffer, sizeof(buffer)) : 0;
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      ended = polled > 0;
      break;
    }
    text.append(buffer, static_cast<size_t>(got));
  }
  return text;
}

int WaitForService(pid_t child, int fd) {
  bool ended = false;
  const std::string verdict = ReadVerdict(fd, ended);
  if (!verdict.empty() && verdict[0] == kServes) {
    return 0;
  }
  if (!verdict.empty()) {
    PrintError(verdict.substr(1));  // written last: the service has let go of everything by now
    return 1;
  }
  if (!ended) {
    PrintError("the service did not say in time that it serves");
    return 1;
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) {
    PrintError("the service was ended by signal " + std::to_string(WTERMSIG(status)) + " before it served");
  } else {
    PrintError("the service ended before it served");
  }
  return 1;
}

// Whoever read what is printed, logged or said to the waiting command may be gone: that ends no service. A handler, as
// programs that are started do not inherit one.
void OutliveReaders() {
  std::signal(SIGPIPE, [](int) {});
}

}  // namespace

void Readiness::Ok() {
  if (!pipe_.valid()) {
    return;
  }
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (null.valid()) {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
      dup2(null.get(), fd);
    }
  }
  WriteAll(pipe_.get(), std::string_view(&kServes, 1));
  pipe_.Reset(-1);
}

void Readiness::Failed(const Status& status) {
  if (pipe_.valid()) {
    WriteAll(pipe_.get(), kFails + status.ToString());
    pipe_.Reset(-1);
  }
}

void OpenStandardDescriptors() {
  int fd = 0;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) {
    close(fd);
  }
}

int RunService(bool foreground, const std::function<Status(Readiness&)>& body) {
  OutliveReaders();
  RaiseFileLimit();
  EndCleanlyWithoutResources();
  if (foreground) {
    Readiness nobody;
    const Status status = body(nobody);
    if (!status.ok()) {
      PrintError(status.ToString());
    }
    return status.ok() ? 0 : 1;
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    PrintError(ErrnoStatus("create a pipe").ToString());
    return 1;
  }
  UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const pid_t child = fork();
  if (child < 0) {
    PrintError(ErrnoStatus("start a background process").ToString());
    return 1;
  }
  if (child > 0) {
    writer.Reset(-1);
    return WaitForService(child, reader.get());
  }
  reader.Reset(-1);
  setsid();
  if (chdir("/") != 0) {
    PrintError(ErrnoStatus("change to /").ToString());
  }
  Readiness readiness(std::move(writer));
  const Status status = body(readiness);
  if (!status.ok() && readiness.pending()) {
    readiness.Failed(status);
  } else if (!status.ok()) {
    LOG_ERROR("{}", status.ToDebugString());
  }
  return status.ok() ? 0 : 1;
}

Result<UniqueFd> BlockEndSignals(Hangup hangup) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);  // always: nothing else would end it in order
  for (const int signal : {SIGINT, SIGHUP}) {
    struct sigaction action {};
    if (signal == SIGHUP && hangup == Hangup::kReopensLog) {
      continue;
    }
    if (sigaction(signal, nullptr, &action) != 0 || action.sa_handler != SIG_IGN) {
      sigaddset(&signals, signal);
    }
  }
  sigset_t blocked = signals;
  if (hangup == Hangup::kReopensLog) {
    sigaddset(&blocked, SIGHUP);
  }
  if (const int error = pthread_sigmask(SIG_BLOCK, &blocked, nullptr); error != 0) {
    errno = error;
    return ErrnoStatus("block signals");
  }
  UniqueFd fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) {
    return ErrnoStatus("create a signal descriptor");
  }
  return fd;
}

}  // namespace termfs::mount
