// SPDX-License-Identifier: Apache-2.0
#include "mount/fusermount.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace termfs::mount {

Status RunFusermount(const std::string& mountpoint, bool lazily) {
  const char* const words[] = {"fusermount3", "-u", lazily ? "-qz" : "-q", "--", mountpoint.c_str(), nullptr};
  pid_t child = 0;
  if (const int error = posix_spawnp(&child, words[0], nullptr, nullptr, const_cast<char* const*>(words), environ);
      error != 0) {
    return Status::Errno(error, "start fusermount3");
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) {
      return ErrnoStatus("wait for fusermount3");
    }
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return Status::Error(EBUSY, "fusermount3 could not unmount " + mountpoint + ": it is in use, or another user's");
  }
  return Status::Ok();
}

}  // namespace termfs::mount
