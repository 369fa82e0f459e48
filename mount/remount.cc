// SPDX-License-Identifier: Apache-2.0
#include "mount/remount.h"

#include <fmt/format.h>
#include <sys/mount.h>

#include <algorithm>
#include <functional>

#include "mount/mount_config.h"
#include "mount/mount_point.h"

namespace termfs::mount {
namespace {

constexpr unsigned long kNoSymlinkFollowing = 256;  // MS_NOSYMFOLLOW of Linux 5.10

struct Flag {
  std::string_view option;
  unsigned long flag;
  std::string_view opposite;
};

constexpr Flag kFlags[] = {
    {"ro", MS_RDONLY, "rw"},
    {"nosuid", MS_NOSUID, "suid"},
    {"nodev", MS_NODEV, "dev"},
    {"noexec", MS_NOEXEC, "exec"},
    {"sync", MS_SYNCHRONOUS, "async"},
    {"dirsync", MS_DIRSYNC, ""},
    {"noatime", MS_NOATIME, "atime"},
    {"noatime", MS_NOATIME, "relatime"},
    {"noatime", MS_NOATIME, "strictatime"},
    {"nodiratime", MS_NODIRATIME, "diratime"},
    {"nosymfollow", kNoSymlinkFollowing, "symfollow"},
};

void ForEachOption(std::string_view options, const std::function<void(std::string_view)>& visit) {
  while (!options.empty()) {
    const size_t comma = std::min(options.find(','), options.size());
    visit(options.substr(0, comma));
    options.remove_prefix(std::min(comma + 1, options.size()));
  }
}

}  // namespace

std::optional<std::string> RemountOptions(std::string_view options) {
  std::string others;
  bool remount = false;
  ForEachOption(options, [&](std::string_view option) {
    const std::string_view name = option.substr(0, option.find('='));
    const bool of_fuse = name == "user_id" || name == "group_id" || name == "rootmode" || name == "fd" ||
                         name == "max_read" || name == "blksize";
    remount = remount || option == "remount";
    if (option != "remount" && !of_fuse) {
      others += others.empty() ? "" : ",";
      others += option;
    }
  });
  return remount ? std::optional(std::move(others)) : std::nullopt;
}

unsigned long FlagsNamed(std::string_view options) {
  unsigned long flags = 0;
  ForEachOption(options, [&](std::string_view option) {
    for (const Flag& flag : kFlags) {
      if (option == flag.option) {
        flags |= flag.flag;
      } else if (option == flag.opposite) {
        flags &= ~flag.flag;
      }
    }
  });
  return flags;
}

Status Remount(const std::string& mountpoint, const std::string& options) {
  ASSIGN_OR_RETURN(const MountDescription description, DescribeMount(mountpoint));
  MountConfig now;
  RETURN_IF_ERROR(ApplyMountOptions(description.options, now));
  MountConfig wanted = now;
  RETURN_IF_ERROR(ApplyMountOptions(options, wanted));
  if (const std::string fixed = NeedsNewMount(now, wanted); !fixed.empty()) {
    return Status::Error(EINVAL, fmt::format("a remount does not change {}; unmount {} and mount it with the options "
                                             "that it is to have",
                                             fixed, mountpoint));
  }
  unsigned long flags = FlagsNamed(options);
  flags |= (flags & MS_NOATIME) == 0 ? MS_RELATIME : 0;  // none of the two: the kernel keeps what it has
  if (::mount("none", mountpoint.c_str(), nullptr, MS_REMOUNT | flags, nullptr) != 0) {
    if (errno == EBUSY) {
      return Status::Error(EBUSY, "files on " + mountpoint + " are open for writing; find out by whom with fuser -vm");
    }
    return errno == EPERM ? Status::Error(EPERM, "only root remounts " + mountpoint)
                          : ErrnoStatus("remount " + mountpoint);
  }
  return DescribeMount(mountpoint).status();  // its process looks at the flags before it answers
}

}  // namespace termfs::mount
