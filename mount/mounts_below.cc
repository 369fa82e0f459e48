// SPDX-License-Identifier: Apache-2.0
#include "mount/mounts_below.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "base/log.h"

namespace termfs::mount {
namespace {

std::string_view TakeUntil(std::string_view& text, char end) {
  const size_t at = text.find(end);
  const std::string_view taken = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view() : text.substr(at + 1);
  return taken;
}

}  // namespace

Result<dev_t> DeviceOf(const std::string& mountpoint) {
  struct statx found {};
  if (statx(AT_FDCWD, mountpoint.c_str(), AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, 0, &found) != 0) {
    return ErrnoStatus(mountpoint);
  }
  return makedev(found.stx_dev_major, found.stx_dev_minor);
}

bool AnyMountBelow(std::string_view table, dev_t device) {
  const std::string own = fmt::format("{}:{}", major(device), minor(device));
  std::set<std::string_view> mounts;  // by number
  std::vector<std::string_view> parents;
  while (!table.empty()) {
    std::string_view line = TakeUntil(table, '\n');
    const std::string_view number = TakeUntil(line, ' ');
    parents.push_back(TakeUntil(line, ' '));
    if (TakeUntil(line, ' ') == own) {
      mounts.insert(number);
    }
  }
  for (const std::string_view parent : parents) {
    if (mounts.contains(parent)) {
      return true;
    }
  }
  return false;
}

bool AnyMountBelow(dev_t device) {
  std::ifstream file("/proc/self/mountinfo");
  const std::string table{std::istreambuf_iterator<char>(file), {}};
  if (table.empty()) {
    LOG_WARNING("the mount table cannot be read, so something may be mounted below this mount");
    return true;
  }
  return AnyMountBelow(table, device);
}

}  // namespace termfs::mount
