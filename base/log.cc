// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace termfs {
namespace {

constexpr char kPattern[] = "%Y-%m-%dT%H:%M:%S.%e %L %t ";

// Of lines of the log that is called `name`.
std::string PatternOf(const std::string& name) {
  std::string pattern = kPattern;
  for (const char c : name) {
    pattern += c;
    if (c == '%') {
      pattern += '%';  // no conversion
    }
  }
  return pattern + (name.empty() ? "%v" : ": %v");
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

spdlog::logger& Logger() {
  static const auto logger = [] {
    auto made = std::make_shared<spdlog::logger>("termfs", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_level(spdlog::level::warn);
    made->set_pattern(PatternOf(""));
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *logger;
}

}  // namespace

Status StartLog(LogLevel level, const std::string& path, const std::string& name) {
  spdlog::logger& logger = Logger();
  logger.set_level(ToSpdlog(level));
  try {
    spdlog::sink_ptr sink;
    if (path.empty()) {
      sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    } else {
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
    }
    sink->set_pattern(PatternOf(name));
    logger.sinks() = {sink};
  } catch (const spdlog::spdlog_ex& error) {
    return Status::Error(EIO, "open the log file " + path + ": " + error.what());
  }
  return Status::Ok();
}

bool LogEnabled(LogLevel level) { return Logger().should_log(ToSpdlog(level)); }

void LogLine(LogLevel level, std::string_view line) { Logger().log(ToSpdlog(level), line); }

}  // namespace termfs
