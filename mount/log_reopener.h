// SPDX-License-Identifier: Apache-2.0
//
// LogReopener: while it lives, the log's file is opened anew at each SIGHUP, also while a service starts or ends.
//
// Thread-safety: none. Ownership: owns a thread.
#pragma once

#include <memory>
#include <thread>

#include "base/result.h"
#include "base/unique_fd.h"

namespace termfs::mount {

class LogReopener {
 public:
  // EAGAIN: no thread; EMFILE. REQUIRES: SIGHUP is blocked (BlockEndSignals).
  static Result<std::unique_ptr<LogReopener>> Start();
  ~LogReopener();
  LogReopener(const LogReopener&) = delete;
  LogReopener& operator=(const LogReopener&) = delete;

 private:
  LogReopener() = default;
  void Run();

  UniqueFd hangups_;  // signalfd
  UniqueFd end_;      // eventfd
  std::thread thread_;
};

}  // namespace termfs::mount
