// SPDX-License-Identifier: Apache-2.0
//
// The log: one line per event to standard error, or to a file, "time level thread message", with the log's name in
// front of the message where it has one. The time is the machine's local one with its distance from UTC,
// 2026-01-31T12:00:00.123+01:00. Format strings are fmt's. base/log.cc is the only file that sees spdlog.
//
//   LOG_INFO("session {} connected over {}", id, transport);
//
// Thread-safety: any thread. Never called on a hit's path.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "base/result.h"

namespace termfs {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Logs at `level` from now on, to the end of file `path`, or to standard error when it is empty. Before the first call
// warnings go to standard error. `name` tells the lines apart where several processes share a file. A file that is not
// there is made, with mode 0640, as are directories. ELOOP: `path` is a symbolic link that another user could have made
// or change (base/trusted_path.h). EPERM: its directory or the file is another user's. REQUIRES: no other thread logs
// meanwhile; a main() calls it before it starts any.
Status StartLog(LogLevel level, const std::string& path = "", const std::string& name = "");
// Opens the file again by its path, as StartLog does: after logrotate has renamed it. After an error, such as for a
// directory that is gone, the log goes on in the file that is open. Without a file nothing happens. Any thread.
Status ReopenLog();
bool LogEnabled(LogLevel level);
void LogLine(LogLevel level, std::string_view line);

}  // namespace termfs

#define TERMFS_LOG(level, ...)                            \
  do {                                                    \
    if (::termfs::LogEnabled(level)) {                    \
      ::termfs::LogLine(level, fmt::format(__VA_ARGS__)); \
    }                                                     \
  } while (false)
#define LOG_DEBUG(...) TERMFS_LOG(::termfs::LogLevel::kDebug, __VA_ARGS__)
#define LOG_INFO(...) TERMFS_LOG(::termfs::LogLevel::kInfo, __VA_ARGS__)
#define LOG_WARNING(...) TERMFS_LOG(::termfs::LogLevel::kWarning, __VA_ARGS__)
#define LOG_ERROR(...) TERMFS_LOG(::termfs::LogLevel::kError, __VA_ARGS__)
