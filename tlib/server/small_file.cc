// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/small_file.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace termfs::tlib::server {
namespace {

Status SyncFolderOf(const std::string& path) {
  const UniqueFd fd(open(FolderOf(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return fd.valid() && fsync(fd.get()) == 0 ? Status::Ok() : ErrnoStatus("sync the folder of " + path);
}

}  // namespace

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

Result<std::string> ReadSmall(const std::string& path, size_t most) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) {
    return ErrnoStatus("open " + path);
  }
  std::string text(most, '\0');
  size_t have = 0;
  while (have < most) {
    const ssize_t got = read(fd.get(), text.data() + have, most - have);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return ErrnoStatus("read " + path);
    }
    if (got == 0) {
      break;
    }
    have += static_cast<size_t>(got);
  }
  text.resize(have);
  return text;
}

Status ReplaceSmall(const std::string& path, std::string_view bytes) {
  const std::string beside = path + ".new";
  {
    unlink(beside.c_str());  // of a start that was cut short
    const UniqueFd fd(open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd.valid()) {
      return ErrnoStatus("create " + beside);
    }
    // A few hundred bytes to a file: all or an error.
    if (write(fd.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()) || fsync(fd.get()) != 0) {
      return ErrnoStatus("write " + beside);
    }
  }
  if (rename(beside.c_str(), path.c_str()) != 0) {
    return ErrnoStatus("rename " + beside);
  }
  return SyncFolderOf(path);
}

Status RemoveSmall(const std::string& path) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus("remove " + path);
  }
  return SyncFolderOf(path);
}

}  // namespace termfs::tlib::server
