// SPDX-License-Identifier: Apache-2.0
#include "base/unnamed_file.h"

#include <fcntl.h>
#include <unistd.h>

namespace termfs {

Result<UniqueFd> OpenUnnamed(const std::string& path, unsigned int mode) {
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  UniqueFd fd(open(folder.empty() ? "." : folder.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, mode));
  if (!fd.valid()) {
    return ErrnoStatus("create " + path);
  }
  return fd;
}

// By way of /proc: to name a descriptor itself is root's alone.
Status NameFile(const UniqueFd& fd, const std::string& path) {
  const std::string self = "/proc/self/fd/" + std::to_string(fd.get());
  return linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0 ? Status::Ok()
                                                                                        : ErrnoStatus("name " + path);
}

}  // namespace termfs
