// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <fcntl.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>

#include "base/unique_fd.h"

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

// A line is one write, so those of several processes do not mix. What a full disk does not take is lost.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileSink(UniqueFd fd) : fd_(std::move(fd)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    [[maybe_unused]] const ssize_t written = write(fd_.get(), line.data(), line.size());
  }
  void flush_() override {}

  const UniqueFd fd_;
};

}  // namespace

Status StartLog(LogLevel level, const std::string& path, const std::string& name, LogLink link) {
  spdlog::sink_ptr sink;
  if (path.empty()) {
    sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  } else {
    const int links = link == LogLink::kRefused ? O_NOFOLLOW : 0;
    std::error_code unmade;  // said by open
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), unmade);
    UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | links, 0666));
    if (!fd.valid() && errno == ELOOP && links != 0) {
      return Status::Error(ELOOP, "the log file " + path + " is a symbolic link; put a file there, or nothing");
    }
    if (!fd.valid()) {
      return ErrnoStatus("open the log file " + path);
    }
    sink = std::make_shared<FileSink>(std::move(fd));
  }
  sink->set_pattern(PatternOf(name));
  spdlog::logger& logger = Logger();
  logger.set_level(ToSpdlog(level));
  logger.sinks() = {sink};
  return Status::Ok();
}

bool LogEnabled(LogLevel level) { return Logger().should_log(ToSpdlog(level)); }

void LogLine(LogLevel level, std::string_view line) { Logger().log(ToSpdlog(level), line); }

}  // namespace termfs
