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

#include "base/trusted_path.h"
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

// The directory may be one that others write to, as /var/log is to a group on some systems: then what is there by the
// log's name is looked at all the more.
Result<std::string> PlaceOf(const std::string& path) {
  const std::filesystem::path whole(path);
  const std::string parent = whole.has_parent_path() ? whole.parent_path().string() : ".";
  ASSIGN_OR_RETURN(const std::string directory, TrustedDirectory(parent, LastDirectory::kShared));
  std::string file = (directory == "/" ? "" : directory) + "/" + whole.filename().string();
  struct stat found {};
  if (lstat(file.c_str(), &found) != 0 || !S_ISLNK(found.st_mode)) {
    return file;
  }
  Result<std::string> target = TrustedFile(file);
  return target.status().code() != EPERM
             ? std::move(target)
             : Status::Error(ELOOP, "it is a symbolic link, and that or what it leads to could be another user's (" +
                                        target.status().ToString() + "); put a file there, or nothing");
}

Result<UniqueFd> OpenPlace(const std::string& file) {
  // A pipe that is there is not waited for.
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
  UniqueFd fd(open(file.c_str(), kFlags, 0640));
  struct stat found {};
  if (!fd.valid() || fstat(fd.get(), &found) != 0) {
    return ErrnoStatus("open it");
  }
  const bool own = found.st_uid == 0 || found.st_uid == geteuid();
  if (S_ISREG(found.st_mode) && (!own || found.st_nlink > 1)) {
    return Status::Error(EPERM, own ? "it has another name, too, and may be anything; remove it"
                                    : "it belongs to user " + std::to_string(found.st_uid) + "; remove it");
  }
  return fd;
}

Result<UniqueFd> OpenFile(const std::string& path) {
  const std::string what = "open the log file " + path;
  Result<std::string> file = PlaceOf(path);
  if (!file.ok()) {
    return std::move(file).status().WithContext(what);
  }
  Result<UniqueFd> fd = OpenPlace(*file);
  return fd.ok() ? std::move(fd) : std::move(fd).status().WithContext(what);
}

// The directory, and those that it is in, unless they are there.
Status MakeDirectories(const std::filesystem::path& path) {
  Status there = TrustedDirectory(path, LastDirectory::kShared).status();
  if (there.code() != ENOENT || !path.has_relative_path()) {
    return there;
  }
  RETURN_IF_ERROR(MakeDirectories(path.parent_path()));
  return mkdir(path.c_str(), 0777) == 0 || errno == EEXIST ? Status::Ok() : ErrnoStatus("create " + path.string());
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
  explicit FileSink(std::string path) : path_(std::move(path)) {}

  Status Open() {
    ASSIGN_OR_RETURN(UniqueFd opened, OpenFile(path_));
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

Status StartLog(LogLevel level, const std::string& path, const std::string& name) {
  spdlog::sink_ptr sink;
  std::shared_ptr<FileSink> file;
  if (path.empty()) {
    sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  } else {
    std::error_code error;
    const std::filesystem::path whole = std::filesystem::absolute(path, error);
    if (Status made = MakeDirectories(whole.parent_path()); !made.ok()) {
      return std::move(made).WithContext("open the log file " + path);
    }
    sink = file = std::make_shared<FileSink>(path);
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
