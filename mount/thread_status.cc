// SPDX-License-Identifier: Apache-2.0
#include "mount/thread_status.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "base/unique_fd.h"

namespace termfs::mount {

Result<std::string> ReadThreadStatus(pid_t thread) {
  const UniqueFd file(open(("/proc/" + std::to_string(thread) + "/status").c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) {
    return ErrnoStatus("open a thread's status");
  }
  std::string text(8192, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = read(file.get(), text.data() + size, text.size() - size);
    if (got < 0) {
      return ErrnoStatus("read a thread's status");
    }
    if (got == 0) {
      break;
    }
    size += static_cast<size_t>(got);
  }
  text.resize(size);
  return text;
}

uint64_t SetInStatus(std::string_view status, std::string_view name) {
  const size_t at = status.find(name);
  if (at == std::string_view::npos) {
    return 0;
  }
  status.remove_prefix(at + name.size());
  status.remove_prefix(std::min(status.find_first_not_of(" \t"), status.size()));
  uint64_t set = 0;
  std::from_chars(status.data(), status.data() + status.size(), set, 16);
  return set;
}

}  // namespace termfs::mount
