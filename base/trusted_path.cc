// SPDX-License-Identifier: Apache-2.0
#include "base/trusted_path.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <deque>
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

#include "base/unique_fd.h"

namespace termfs {
namespace {

constexpr int kMostLinks = 40;  // as the kernel
constexpr int kMostDepth = 8;   // of directories in a directory that is looked through

Status CheckOwner(const struct stat& found, const std::string& path) {
  if (found.st_uid == 0 || found.st_uid == geteuid()) {
    return Status::Ok();
  }
  const std::string me = geteuid() == 0 ? "root" : std::to_string(geteuid());
  return Status::Error(EPERM, path + " belongs to user " + std::to_string(found.st_uid) +
                                  ", not to root or the user of this program: do this as that user, choose another " +
                                  "place, or chown " + me + " " + path);
}

bool IsWritableByOthers(const struct stat& found) {
  const bool private_group = found.st_gid == found.st_uid && found.st_uid != 0;
  return (found.st_mode & S_IWOTH) != 0 || ((found.st_mode & S_IWGRP) != 0 && !private_group);
}

Status Writable(const struct stat& found, const std::string& path) {
  const bool everybody = (found.st_mode & S_IWOTH) != 0;
  return Status::Error(EPERM, path + ", of user " + std::to_string(found.st_uid) + ", may be written to by " +
                                  (everybody ? "everybody" : "group " + std::to_string(found.st_gid)) +
                                  ": chmod go-w " + path);
}

Status CheckDirectory(const struct stat& found, const std::string& path, LastDirectory kind) {
  RETURN_IF_ERROR(CheckOwner(found, path));
  const bool sticky = (found.st_mode & S_ISVTX) != 0;
  const bool may_be = kind == LastDirectory::kShared || (kind == LastDirectory::kSticky && sticky);
  return IsWritableByOthers(found) && !may_be ? Writable(found, path) : Status::Ok();
}

Status CheckFile(const struct stat& found, const std::string& path) {
  if (S_ISBLK(found.st_mode) || S_ISCHR(found.st_mode)) {
    return Status::Ok();  // the path decides which device it is; who else may use it, the administrator
  }
  RETURN_IF_ERROR(CheckOwner(found, path));
  return IsWritableByOthers(found) ? Writable(found, path) : Status::Ok();
}

Result<std::string> TargetOf(int link, const std::string& path) {
  std::array<char, PATH_MAX> target;
  const ssize_t size = readlinkat(link, "", target.data(), target.size());
  if (size <= 0 || static_cast<size_t>(size) == target.size()) {
    return ErrnoStatus("read the link " + path);
  }
  return std::string(target.data(), static_cast<size_t>(size));
}

// Goes from / along a path, one name after the other, and looks at each before it goes on.
class Walk {
 public:
  // `last_may_be_file`: also something else than a directory, or nothing.
  static Result<std::string> To(const std::string& path, bool last_may_be_file, LastDirectory last) {
    Walk walk(last_may_be_file, last);
    RETURN_IF_ERROR(walk.Begin());
    std::error_code error;
    const std::string whole = path.starts_with('/') ? path : std::filesystem::current_path(error).string() + "/" + path;
    if (error || path.empty()) {
      return Status::Error(ENOENT, "'" + path + "': No such file or directory");
    }
    walk.Prepend(whole);
    while (!walk.names_.empty()) {
      RETURN_IF_ERROR(walk.Step());
    }
    return walk.at_is_file_ ? walk.path_ : walk.Arrived();
  }

 private:
  Walk(bool last_may_be_file, LastDirectory last) : last_may_be_file_(last_may_be_file), last_(last) {}

  Status Begin() {
    at_ = UniqueFd(open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
    path_ = "/";
    return at_.valid() && fstat(at_.get(), &found_) == 0 ? Status::Ok() : ErrnoStatus("open /");
  }

  void Prepend(std::string_view path) {
    std::deque<std::string> names;
    while (!path.empty()) {
      const size_t slash = std::min(path.find('/'), path.size());
      if (slash != 0 && path.substr(0, slash) != ".") {
        names.emplace_back(path.substr(0, slash));
      }
      path.remove_prefix(std::min(slash + 1, path.size()));
    }
    names_.insert(names_.begin(), names.begin(), names.end());
  }

  Result<std::string> Arrived() const {
    RETURN_IF_ERROR(CheckDirectory(found_, path_, last_));
    return path_;
  }

  Status Step() {
    const std::string name = std::move(names_.front());
    names_.pop_front();
    const bool last = names_.empty() && last_may_be_file_;
    RETURN_IF_ERROR(CheckDirectory(found_, path_, LastDirectory::kSticky));  // a name there is its owner's
    if (name == "..") {
      const size_t slash = path_.rfind('/');
      return Enter(name, slash == 0 ? "/" : path_.substr(0, slash));
    }
    const std::string next = (path_ == "/" ? "" : path_) + "/" + name;
    const UniqueFd fd(openat(at_.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!fd.valid() && errno == ENOENT && last) {
      return BeAt(next);
    }
    struct stat found {};
    if (!fd.valid() || fstat(fd.get(), &found) != 0) {
      return ErrnoStatus(next);
    }
    if (S_ISLNK(found.st_mode)) {
      return Follow(fd.get(), found, next);
    }
    if (S_ISDIR(found.st_mode)) {
      return Enter(name, next);  // by its name again, as a descriptor like this one mounts nothing by itself
    }
    RETURN_IF_ERROR(last ? CheckFile(found, next) : Status::Error(ENOTDIR, next + " is no directory"));
    return BeAt(next);
  }

  Status BeAt(const std::string& file) {
    at_is_file_ = true;
    path_ = file;
    return Status::Ok();
  }

  Status Follow(int link, const struct stat& found, const std::string& path) {
    RETURN_IF_ERROR(CheckOwner(found, path));
    if (++links_ > kMostLinks) {
      return Status::Error(ELOOP, path + ": too many symbolic links");
    }
    ASSIGN_OR_RETURN(const std::string target, TargetOf(link, path));
    Prepend(target);
    return target.starts_with('/') ? Begin() : Status::Ok();
  }

  Status Enter(const std::string& name, std::string path) {
    UniqueFd fd(openat(at_.get(), name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd.valid() || fstat(fd.get(), &found_) != 0) {
      return ErrnoStatus(path);
    }
    at_ = std::move(fd);
    path_ = std::move(path);
    return Status::Ok();
  }

  const bool last_may_be_file_;
  const LastDirectory last_;
  UniqueFd at_;           // the directory that has been reached
  struct stat found_ {};  // of it
  std::string path_;      // of it, or of the file that has been reached
  bool at_is_file_ = false;
  std::deque<std::string> names_;  // what is to come
  int links_ = 0;
};

Status CheckIn(UniqueFd directory, const std::string& path, const std::string& may_be_links, int depth) {
  if (!directory.valid()) {
    return ErrnoStatus("open " + path);
  }
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(fdopendir(directory.get()), closedir);
  if (!dir) {
    return ErrnoStatus("open " + path);
  }
  directory.release();
  while (const dirent* entry = readdir(dir.get())) {
    const std::string name = entry->d_name;
    const std::string file = fmt::format("{}/{}", path, name);
    struct stat found {};
    if (name == "." || name == ".." || fstatat(dirfd(dir.get()), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0 ||
        S_ISSOCK(found.st_mode)) {
      continue;
    }
    if (S_ISLNK(found.st_mode)) {
      RETURN_IF_ERROR(CheckOwner(found, file));
      if (may_be_links.find(" " + name + " ") == std::string::npos) {
        return Status::Error(EPERM, file + ", of user " + std::to_string(found.st_uid) +
                                        ", is a symbolic link; put the file itself there");
      }
      ASSIGN_OR_RETURN(const std::string target, TrustedFile(file));
      UniqueFd linked(open(target.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (linked.valid()) {
        RETURN_IF_ERROR(CheckIn(std::move(linked), target, "", depth + 1));
      }
      continue;
    }
    RETURN_IF_ERROR(CheckFile(found, file));
    if (S_ISDIR(found.st_mode) && depth < kMostDepth) {
      constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
      RETURN_IF_ERROR(CheckIn(UniqueFd(openat(dirfd(dir.get()), name.c_str(), kFlags)), file, "", depth + 1));
    }
  }
  return Status::Ok();
}

}  // namespace

Result<std::string> TrustedDirectory(const std::string& path, LastDirectory last) {
  return Walk::To(path, /*last_may_be_file=*/false, last);
}

Result<std::string> TrustedFile(const std::string& path) {
  return Walk::To(path, /*last_may_be_file=*/true, LastDirectory::kTrusted);
}

Status CheckContents(const std::string& path, const std::string& may_be_links) {
  return CheckIn(UniqueFd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)), path, may_be_links, 0);
}

}  // namespace termfs
