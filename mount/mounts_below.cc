// SPDX-License-Identifier: Apache-2.0
#include "mount/mounts_below.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <set>
#include <vector>

#include "base/log.h"
#include "mount/mount_table.h"

namespace termfs::mount {

Result<dev_t> DeviceOf(const std::string& mountpoint) {
  struct statx found {};
  if (statx(AT_FDCWD, mountpoint.c_str(), AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, 0, &found) != 0) {
    return ErrnoStatus(mountpoint);
  }
  return makedev(found.stx_dev_major, found.stx_dev_minor);
}

bool AnyMountBelow(std::string_view table, dev_t device) {
  const std::vector<MountEntry> entries = ParseMountTable(table);
  std::set<uint64_t> mounts;
  for (const MountEntry& entry : entries) {
    if (entry.mount.device == device) {
      mounts.insert(entry.mount.number);
    }
  }
  return std::any_of(entries.begin(), entries.end(),
                     [&mounts](const MountEntry& entry) { return mounts.contains(entry.parent); });
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
