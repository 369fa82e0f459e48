// SPDX-License-Identifier: Apache-2.0
//
// Programs that go to the background only once they really serve. The command's process waits for the word of the one
// that stays, prints its error if that is what comes, and ends with the matching exit code.
//
// Thread-safety: called from main, before any thread exists.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace termfs::mount {

// How the one that serves says so.
class Readiness {
 public:
  Readiness() = default;  // in the foreground: nobody waits
  explicit Readiness(UniqueFd pipe) : pipe_(std::move(pipe)) {}
  virtual ~Readiness() = default;
  // It serves. Lets the waiting command go, and lets go of the terminal. At most once.
  virtual void Ok();
  void Failed(const Status& status);
  bool pending() const { return pipe_.valid(); }

 private:
  UniqueFd pipe_;
};

// To be called first in main: where the caller has closed standard input, output or error, /dev/null is it, so that
// nothing else that is opened gets its number.
void OpenStandardDescriptors();

// Runs `body` here, or in a process of its own. Returns the exit code for the calling process: in the foreground when
// `body` has ended, otherwise when it has said that it serves or has failed.
int RunService(bool foreground, const std::function<Status(Readiness&)>& body);

// What SIGHUP means to a service. kEnds: its terminal is gone. kReopensLog: it has a log file, which was renamed.
enum class Hangup : uint8_t { kEnds, kReopensLog };

// SIGTERM, and SIGINT and SIGHUP unless they are ignored (nohup), as a descriptor (signalfd), blocked for this thread
// and those that it starts from now on. With kReopensLog SIGHUP is blocked in any case, and left to a LogReopener.
Result<UniqueFd> BlockEndSignals(Hangup hangup = Hangup::kEnds);

}  // namespace termfs::mount
