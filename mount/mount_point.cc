// SPDX-License-Identifier: Apache-2.0
#include "mount/mount_point.h"

#include <fcntl.h>
#include <mntent.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"
#include "mount/front_end.h"

namespace termfs::mount {
namespace {

constexpr size_t kMaxDescription = 64U << 10;  // the kernel's limit for an extended attribute
constexpr std::chrono::seconds kUnmountPatience{10};

using TimePoint = std::chrono::steady_clock::time_point;

// What follows the number in the line of a NAME_count.
Status ParseBuckets(std::string_view name, std::string_view text, MountDescription& description) {
  constexpr std::string_view kCount = "_count";
  if (text.empty() || !name.ends_with(kCount)) {
    return Status::Ok();
  }
  name.remove_suffix(kCount.size());
  ASSIGN_OR_RETURN(description.histograms[std::string(name)], BucketsFromText(text));
  return Status::Ok();
}

Status ParseLine(std::string_view line, MountDescription& description) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) {
    return Status::Error(EPROTO, "a mount's description of itself makes no sense");
  }
  const std::string_view name = line.substr(0, space);
  const std::string_view value = line.substr(space + 1);
  const std::pair<std::string_view, std::string*> texts[] = {
      {"address", &description.address}, {"secret", &description.secret},   {"transport", &description.transport},
      {"fuse", &description.fuse},       {"libfuse", &description.libfuse}, {"options", &description.options}};
  for (const auto& [text, place] : texts) {
    if (name == text) {
      *place = FromLine(value);
      return Status::Ok();
    }
  }
  uint64_t number = 0;
  const auto parsed = std::from_chars(value.data(), value.data() + value.size(), number);
  if (parsed.ec != std::errc()) {
    return Status::Error(EPROTO, "a mount's description of itself makes no sense");
  }
  if (name == "pid") {
    description.pid = static_cast<int>(number);
  } else if (name == "pid_namespace") {
    description.pid_namespace = number;
  } else {
    description.metrics[std::string(name)] = number;
    return ParseBuckets(name, std::string_view(parsed.ptr, value.data() + value.size()), description);
  }
  return Status::Ok();
}

Status ForEachMount(const std::function<void(const mntent&)>& visit) {
  const std::unique_ptr<FILE, int (*)(FILE*)> table(setmntent("/proc/self/mounts", "re"), &endmntent);
  if (table == nullptr) {
    return ErrnoStatus("read the mount table");
  }
  mntent entry{};
  std::vector<char> line(16U << 10);
  while (getmntent_r(table.get(), &entry, line.data(), static_cast<int>(line.size())) != nullptr) {
    visit(entry);
  }
  return Status::Ok();
}

Result<MountDescription> Parse(std::string_view text) {
  MountDescription description;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    RETURN_IF_ERROR(ParseLine(text.substr(0, end), description));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return description;
}

// Asks a mount what it is, in a process of its own: who waits for a mount that is stopped cannot even be killed, and a
// process does not end before its last thread. That process is left behind then.
class Question {
 public:
  static Result<Question> Ask(std::string path) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
      return ErrnoStatus("make a pipe");
    }
    Question question(std::move(path), UniqueFd(ends[0]));
    const UniqueFd to(ends[1]);
    question.child_ = fork();
    if (question.child_ == 0) {
      Answer(question.path_.c_str(), to.get());
    }
    return question.child_ > 0 ? Result<Question>(std::move(question)) : ErrnoStatus("start a process");
  }

  const std::string& path() const { return path_; }

  // ETIMEDOUT: no answer by then. REQUIRES: called once.
  Result<MountDescription> Wait(TimePoint deadline) {
    std::string text;
    std::array<char, 4096> piece;
    while (true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      pollfd waiting{.fd = from_.get(), .events = POLLIN, .revents = 0};
      const int ready = poll(&waiting, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
      if (ready < 0 && errno == EINTR) {
        continue;
      }
      if (ready <= 0) {
        kill(child_, SIGKILL);
        return Status::Error(ETIMEDOUT, path_ + ": the mount does not answer; is its process stopped?");
      }
      const ssize_t got = read(from_.get(), piece.data(), piece.size());
      if (got <= 0) {
        break;
      }
      text.append(piece.data(), static_cast<size_t>(got));
    }
    waitpid(child_, nullptr, 0);
    int error = EPROTO;
    if (text.size() >= sizeof(error)) {
      std::memcpy(&error, text.data(), sizeof(error));
    }
    if (error == EOPNOTSUPP || error == ENODATA) {
      return Status::Error(EINVAL, path_ + " is not the mount point of a termfs");
    }
    if (SaysDead(error)) {
      return Status::Error(ENOTCONN, path_ + ": a dead mount is there, end it with termfs umount");
    }
    if (error != 0) {
      return Status::Errno(error, path_);
    }
    return Parse(std::string_view(text).substr(sizeof(error)));
  }

 private:
  Question(std::string path, UniqueFd from) : path_(std::move(path)), from_(std::move(from)) {}

  // An errno, and the answer if that is 0. Nothing else stays open: whoever reads our output must not wait for us.
  [[noreturn]] static void Answer(const char* path, int to) {
    close_range(0, static_cast<unsigned>(to) - 1, 0);
    close_range(static_cast<unsigned>(to) + 1, ~0U, 0);
    static std::array<char, sizeof(int) + kMaxDescription> message;
    const ssize_t got = getxattr(path, kDescriptionXattr, message.data() + sizeof(int), kMaxDescription);
    const int error = got < 0 ? errno : 0;
    std::memcpy(message.data(), &error, sizeof(error));
    const size_t size = sizeof(error) + static_cast<size_t>(std::max<ssize_t>(got, 0));
    for (size_t sent = 0; sent < size;) {
      const ssize_t put = write(to, message.data() + sent, size - sent);
      if (put <= 0) {
        break;
      }
      sent += static_cast<size_t>(put);
    }
    _exit(0);
  }

  std::string path_;
  UniqueFd from_;
  pid_t child_ = -1;
};

}  // namespace

Result<fs::client::ServerAddress> MountDescription::server() const {
  if (secret.empty() && fs::client::MeansHost(address)) {
    return Status::Error(EPERM, "only root and the user of the mount may ask its server, " + address);
  }
  if (secret.empty()) {
    return fs::client::ServerAddress(address);
  }
  ASSIGN_OR_RETURN(auto host, fs::client::ParseHostPort(address));
  return fs::client::ServerAddress(std::move(host), secret);
}

uint64_t PidNamespace() {
  struct stat st {};
  return stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

std::string ToLine(std::string_view value) {
  std::string text;
  for (const char c : value) {
    text += c == '\n' ? "\\n" : c == '\\' ? "\\\\" : std::string(1, c);
  }
  return text;
}

std::string FromLine(std::string_view text) {
  std::string value;
  for (size_t i = 0; i < text.size(); i++) {
    const bool escaped = text[i] == '\\' && i + 1 < text.size();
    i += escaped ? 1 : 0;
    value += escaped && text[i] == 'n' ? '\n' : text[i];
  }
  return value;
}

std::string BucketsToText(const Buckets& buckets) {
  std::string text;
  for (const auto& [bucket, count] : buckets) {
    text += text.empty() ? " " : ",";
    text += std::to_string(bucket) + ":" + std::to_string(count);
  }
  return text;
}

Result<Buckets> BucketsFromText(std::string_view text) {
  Buckets buckets;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    uint32_t bucket = 0;
    uint64_t count = 0;
    const auto number = std::from_chars(at + 1, end, bucket);  // behind a space or a comma
    if (number.ec != std::errc() || number.ptr == end || bucket >= Histogram::kBuckets) {
      return Status::Error(EPROTO, "a mount's buckets of a histogram make no sense");
    }
    const auto values = std::from_chars(number.ptr + 1, end, count);
    if (values.ec != std::errc()) {
      return Status::Error(EPROTO, "a mount's buckets of a histogram make no sense");
    }
    buckets[bucket] = count;
    at = values.ptr;
  }
  return buckets;
}

Result<MountDescription> DescribeMount(const std::string& path) {
  ASSIGN_OR_RETURN(Question question, Question::Ask(path));
  return question.Wait(std::chrono::steady_clock::now() + kUnmountPatience);
}

Result<std::vector<std::pair<std::string, MountDescription>>> DescribeMountsOf(const std::string& address,
                                                                               std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  std::vector<Question> asked;
  RETURN_IF_ERROR(ForEachMount([&](const mntent& entry) {
    if (address == entry.mnt_fsname && std::string_view(entry.mnt_type) == "fuse.termfs") {
      if (Result<Question> question = Question::Ask(entry.mnt_dir); question.ok()) {
        asked.push_back(std::move(*question));
      }
    }
  }));
  std::vector<std::pair<std::string, MountDescription>> found;
  for (Question& question : asked) {
    if (Result<MountDescription> description = question.Wait(deadline); description.ok()) {
      found.emplace_back(question.path(), std::move(*description));
    }
  }
  return found;
}

Result<std::optional<uid_t>> MountOwner(const std::string& path) {
  constexpr char kOption[] = "user_id";
  std::optional<uid_t> owner;
  RETURN_IF_ERROR(ForEachMount([&](const mntent& entry) {
    if (path == entry.mnt_dir) {
      const char* const option = hasmntopt(&entry, kOption);
      uid_t id = 0;
      const bool valued = option != nullptr && option[sizeof(kOption) - 1] == '=';
      const char* const digits = valued ? option + sizeof(kOption) : "";
      owner = std::from_chars(digits, digits + std::strlen(digits), id).ec == std::errc() ? std::optional(id)
                                                                                          : std::nullopt;
    }
  }));
  return owner;
}

Result<std::string> MountType(const std::string& path) {
  std::string type;
  RETURN_IF_ERROR(ForEachMount([&](const mntent& entry) {
    if (path == entry.mnt_dir) {
      type = entry.mnt_type;
    }
  }));
  return type;
}

}  // namespace termfs::mount
