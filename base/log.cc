// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <fcntl.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <mutex>
#include <utility>

#include "base/unique_fd.h"

namespace termfs {
namespace {

constexpr char kPattern[] = "%Y-%m-%dT%H:%M:%S.%e%z %L %t ";

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

// Nobody but root and the user of this process may change which files it has.
bool IsGuarded(int directory) {
  struct stat found {};
  return fstat(directory, &found) == 0 && (found.st_uid == 0 || found.st_uid == geteuid()) &&
         (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

Result<UniqueFd> OpenFile(const std::string& path, LogLink link) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY;
  constexpr mode_t kMode = 0666;
  const std::filesystem::path whole(path);
  UniqueFd fd;
  int refused = 0;
  if (link == LogLink::kFollowed) {
    fd = UniqueFd(open(path.c_str(), kFlags, kMode));
  } else {
    const std::string parent = whole.has_parent_path() ? whole.parent_path().string() : ".";
    const UniqueFd directory(open(parent.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!directory.valid()) {
      return ErrnoStatus("open the directory of the log file " + path);
    }
    refused = IsGuarded(directory.get()) ? 0 : O_NOFOLLOW;
    // A pipe that somebody puts there is not waited for.
    fd = UniqueFd(openat(directory.get(), whole.filename().c_str(), kFlags | O_NONBLOCK | refused, kMode));
  }
  if (!fd.valid() && errno == ELOOP && refused != 0) {
    return Status::Error(ELOOP, "the log file " + path +
                                    " is a symbolic link in a directory that others may write to; put a file there, "
                                    "or nothing");
  }
  if (!fd.valid()) {
    return ErrnoStatus("open the log file " + path);
  }
  return fd;
}

// What a log may still add to a disk with less than kShortRoom free, which others need more: some lines that say why.
constexpr uint64_t kShortRoom = uint64_t{4} << 20;     // bytes, or a sixteenth of the disk
constexpr uint64_t kShortBudget = uint64_t{64} << 10;  // bytes

// The disk of the file, if it is one, has little room left.
bool IsShort(int fd) {
  struct stat file {};
  struct statvfs use {};
  return fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && fstatvfs(fd, &use) == 0 &&
         use.f_bavail * use.f_frsize < std::min(kShortRoom, use.f_blocks * use.f_frsize / 16);
}

// A line is one write, so those of several processes do not mix. What a full disk does not take is lost; how many lines
// that were is said when there is room again.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  FileSink(std::string path, LogLink link) : path_(std::move(path)), link_(link) {}

  Status Open() {
    ASSIGN_OR_RETURN(UniqueFd opened, OpenFile(path_, link_));
    const std::lock_guard<std::mutex> lock(mutex_);
    std::swap(fd_, opened);
    return Status::Ok();
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (!MayAdd(line.size())) {
      ++lost_;
      return;
    }
    if (lost_ > 0) {
      spdlog::memory_buf_t note;
      const std::string text = fmt::format("{} lines are missing here: the log's disk was full, or failed", lost_);
      formatter_->format({message.time, {}, message.logger_name, spdlog::level::warn, text}, note);
      if (!Put(note)) {
        ++lost_;
        return;
      }
      lost_ = 0;
    }
    lost_ += Put(line) ? 0 : 1;
  }
  bool MayAdd(size_t bytes) {
    short_bytes_ = IsShort(fd_.get()) ? short_bytes_ + bytes : 0;
    return short_bytes_ <= kShortBudget;
  }
  bool Put(const spdlog::memory_buf_t& line) {
    return write(fd_.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size());
  }
  void flush_() override {}

  const std::string path_;
  const LogLink link_;
  // Under mutex_.
  UniqueFd fd_;
  uint64_t lost_ = 0;         // lines since the last that was written
  uint64_t short_bytes_ = 0;  // of lines since the disk has been short of room
};

// Null: the log is on standard error.
std::shared_ptr<FileSink>& LogFile() {
  static std::shared_ptr<FileSink> file;
  return file;
}

}  // namespace

Status StartLog(LogLevel level, const std::string& path, const std::string& name, LogLink link) {
  spdlog::sink_ptr sink;
  std::shared_ptr<FileSink> file;
  if (path.empty()) {
    sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  } else {
    std::error_code unmade;  // said by open
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), unmade);
    sink = file = std::make_shared<FileSink>(path, link);
    RETURN_IF_ERROR(file->Open());
  }
  LogFile() = std::move(file);
  sink->set_pattern(PatternOf(name));
  spdlog::logger& logger = Logger();
  logger.set_level(ToSpdlog(level));
  logger.sinks() = {sink};
  return Status::Ok();
}

Status ReopenLog() {
  const std::shared_ptr<FileSink>& file = LogFile();
  return file == nullptr ? Status::Ok() : file->Open();
}

bool LogEnabled(LogLevel level) { return Logger().should_log(ToSpdlog(level)); }

void LogLine(LogLevel level, std::string_view line) { Logger().log(ToSpdlog(level), line); }

}  // namespace termfs
