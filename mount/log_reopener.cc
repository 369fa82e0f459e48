// SPDX-License-Identifier: Apache-2.0
#include "mount/log_reopener.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>

#include "base/log.h"
#include "base/start_thread.h"

namespace termfs::mount {
namespace {

constexpr int kReopenTurnMs = 3600 * 1000;  // one turn of an endless wait

}  // namespace

Result<std::unique_ptr<LogReopener>> LogReopener::Start() {
  std::unique_ptr<LogReopener> reopener(new LogReopener);
  sigset_t hangup;
  sigemptyset(&hangup);
  sigaddset(&hangup, SIGHUP);
  reopener->hangups_ = UniqueFd(signalfd(-1, &hangup, SFD_CLOEXEC | SFD_NONBLOCK));
  reopener->end_ = UniqueFd(eventfd(0, EFD_CLOEXEC));
  if (!reopener->hangups_.valid() || !reopener->end_.valid()) {
    return ErrnoStatus("wait for SIGHUP");
  }
  ASSIGN_OR_RETURN(reopener->thread_, StartThread([self = reopener.get()] { self->Run(); }));
  return reopener;
}

LogReopener::~LogReopener() {
  const uint64_t one = 1;
  if (thread_.joinable() && write(end_.get(), &one, sizeof(one)) == sizeof(one)) {
    thread_.join();
  }
}

void LogReopener::Run() {
  while (true) {
    pollfd ready[2] = {{.fd = hangups_.get(), .events = POLLIN, .revents = 0},
                       {.fd = end_.get(), .events = POLLIN, .revents = 0}};
    if (poll(ready, 2, kReopenTurnMs) <= 0) {
      continue;
    }
    signalfd_siginfo hangup{};
    if (read(hangups_.get(), &hangup, sizeof(hangup)) == sizeof(hangup)) {
      if (const Status reopened = ReopenLog(); reopened.ok()) {
        LOG_INFO("the log's file was opened again, on SIGHUP");
      } else {
        LOG_WARNING("the log goes on where it was: {}", reopened.ToString());
      }
    }
    if ((ready[1].revents & POLLIN) != 0) {
      return;
    }
  }
}

}  // namespace termfs::mount
