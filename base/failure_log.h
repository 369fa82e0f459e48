// SPDX-License-Identifier: Apache-2.0
//
// FailureLog: logs what fails again and again, such as accesses to a disk: of each kind one line a minute, with how
// many lines were left out since.
//
//   failures.Report("read", [&] { return path + ": read of 4096 bytes at 8192 failed: ..."; });
//
// Thread-safety: any thread. Borrows the clock.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/seldom.h"

namespace termfs {

class FailureLog {
 public:
  static constexpr std::chrono::minutes kInterval{1};

  explicit FailureLog(const Clock& clock = Clock::System()) : clock_(clock) {}

  // `kind`: a literal. `describe` returns the line; it is called only if the line is logged.
  template <typename Describe>
  void Report(std::string_view kind, const Describe& describe) EXCLUDES(mutex_) {
    const std::optional<uint64_t> left_out = SeldomOf(kind).Next();
    if (left_out.has_value()) {
      const std::string more =
          *left_out == 0 ? "" : fmt::format(" ({} more of this kind since the last such line)", *left_out);
      LOG_ERROR("{}{}", describe(), more);
    }
  }
  // "what: the error", "what number: the error".
  void Report(std::string_view what, const Status& failed) EXCLUDES(mutex_) {
    Report(what, [&] { return fmt::format("{}: {}", what, failed.ToDebugString()); });
  }
  void Report(std::string_view what, uint64_t number, const Status& failed) EXCLUDES(mutex_) {
    Report(what, [&] { return fmt::format("{} {}: {}", what, number, failed.ToDebugString()); });
  }

 private:
  Seldom& SeldomOf(std::string_view kind) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return kinds_.try_emplace(kind, kInterval, clock_).first->second;  // stays where it is
  }

  const Clock& clock_;
  Mutex mutex_;
  std::map<std::string_view, Seldom> kinds_ GUARDED_BY(mutex_);
};

}  // namespace termfs
