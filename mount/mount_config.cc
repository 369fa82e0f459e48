// SPDX-License-Identifier: Apache-2.0
#include "mount/mount_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "mount/size.h"

namespace termfs::mount {
namespace {

// Handed on: they are flags of the kernel's mount, or libfuse's.
constexpr std::array<std::string_view, 14> kKernelOptions = {"ro",    "rw",      "suid",       "nosuid",     "dev",
                                                             "nodev", "exec",    "noexec",     "noatime",    "async",
                                                             "sync",  "dirsync", "nodiratime", "allow_other"};
// Accepted, since fstab and mount(8) bring them along; they are not meant for a file system, or are what it does
// anyway.
constexpr std::array<std::string_view, 9> kForOthers = {
    "defaults", "auto", "noauto", "_netdev", "nofail", "nouser", "default_permissions", "loud", "silent"};

template <size_t kCount>
bool Contains(const std::array<std::string_view, kCount>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Status ApplyBitmap(std::string_view value, MountConfig& config) {
  if (value == "live") {
    config.bitmap = tlib::client::BitmapMode::kLive;
  } else if (value == "pulled") {
    config.bitmap = tlib::client::BitmapMode::kPulled;
  } else if (value == "off") {
    config.bitmap = tlib::client::BitmapMode::kOff;
  } else {
    return Status::Error(EINVAL, fmt::format("bitmap={}: it is live, pulled or off", value));
  }
  return Status::Ok();
}

template <typename Count>
Status ApplyCount(std::string_view name, std::string_view value, uint64_t least, uint64_t most, Count& to) {
  const Result<uint64_t> count = ParseCount(value, least, most);
  if (!count.ok()) {
    return Status(count.status()).WithContext(std::string(name));
  }
  to = Count(*count);
  return Status::Ok();
}

Status ApplyOne(std::string_view option, MountConfig& config) {
  const size_t equals = option.find('=');
  const std::string_view name = option.substr(0, equals);
  const std::string_view value = equals == std::string_view::npos ? std::string_view() : option.substr(equals + 1);
  if (option == "relatime" || option == "atime") {  // libfuse knows neither
    config.access_times = true;
    std::erase(config.kernel, "noatime");
    return Status::Ok();
  }
  if (option == "noatime") {
    config.access_times = false;
  } else if (option == "nodiratime") {
    config.directory_access_times = false;
  } else if (option == "ro" || option == "rw") {
    config.read_only = option == "ro";
  } else if (option == "sync" || option == "async") {
    config.synchronous = option == "sync";
  } else if (option == "dirsync") {
    config.synchronous_names = true;
  }
  if (equals == std::string_view::npos && Contains(kKernelOptions, name)) {
    config.kernel.emplace_back(name);
    return Status::Ok();
  }
  if (equals == std::string_view::npos && Contains(kForOthers, name)) {
    return Status::Ok();
  }
  if (equals == std::string_view::npos && (name == "acl" || name == "noacl")) {
    config.acl = name == "acl";
    return Status::Ok();
  }
  if (name.starts_with("x-") || name == "comment") {
    return Status::Ok();  // remarks for other programs
  }
  if (equals != std::string_view::npos && name == "bitmap") {
    return ApplyBitmap(value, config);
  }
  if (equals != std::string_view::npos && name == "secret") {
    config.secret = value;
    return value.empty() ? Status::Error(EINVAL, "secret= needs the name of a file") : Status::Ok();
  }
  if (equals != std::string_view::npos && name == "rdma") {
    config.rdma = value;
    return value.empty() ? Status::Error(EINVAL, "rdma= needs the name or an address of an RDMA device") : Status::Ok();
  }
  if (equals != std::string_view::npos && name == "cache") {
    config.grants = value == "granted";
    return config.grants || value == "none"
               ? Status::Ok()
               : Status::Error(EINVAL, fmt::format("cache={}: it is granted or none", value));
  }
  if (equals != std::string_view::npos && name == "fuse") {
    return ParseTransport(value, config.fuse)
               ? Status::Ok()
               : Status::Error(EINVAL, fmt::format("fuse={}: it is auto, io_uring or device", value));
  }
  if (equals != std::string_view::npos) {
    if (name == "threads") {
      return ApplyCount(name, value, 1, 256, config.threads);
    }
    if (name == "timeout") {
      return ApplyCount(name, value, 1, 3600, config.timeout);
    }
    if (name == "reconnect") {
      return ApplyCount(name, value, 0, 3600, config.reconnect);
    }
  }
  return Status::Error(EINVAL, fmt::format("unknown mount option '{}'", option));
}

}  // namespace

Status ApplyMountOptions(std::string_view options, MountConfig& config) {
  while (!options.empty()) {
    const size_t comma = options.find(',');
    const std::string_view option = options.substr(0, comma);
    if (!option.empty()) {
      RETURN_IF_ERROR(ApplyOne(option, config));
    }
    options = comma == std::string_view::npos ? std::string_view() : options.substr(comma + 1);
  }
  return Status::Ok();
}

std::string MountOptionsHelp() {
  return "Mount options (-o, separated by commas):\n"
         "  bitmap=live|pulled|off  how pages that are not in memory are known before they are read: from the "
         "server's\n"
         "                          own bitmap (the default on one host), from a copy pulled every second (the default "
         "over\n"
         "                          a network), or not at all\n"
         "  secret=FILE             of a volume on another host: a copy of the file 'secret' in its directory\n"
         "  rdma=DEVICE             of a volume on another host: it is reached through this RDMA device, named as by\n"
         "                          `rdma link`, or by an address of it; else through the software RNIC\n"
         "  cache=granted|none      attributes, names and pages that the kernel may use without asking: what the "
         "server\n"
         "                          grants until it changes (the default), or none; none, too, with reconnect below "
         "12\n"
         "  acl, noacl              POSIX access control lists are enforced (the default), or modes alone. With them "
         "each\n"
         "                          path that somebody other than the owner of the mount's root takes through it is "
         "one\n"
         "                          more question of the kernel\n"
         "  threads=N               requests answered at the same time (default 16)\n"
         "  fuse=auto|io_uring|device\n"
         "                          how requests come from the kernel: over io_uring where it offers that (the "
         "default),\n"
         "                          over io_uring or not at all, over /dev/fuse. Linux 6.14 and later offer it when\n"
         "                          root has set /sys/module/fuse/parameters/enable_uring to Y\n"
         "  timeout=SECONDS         longest wait for the server (default 30)\n"
         "  reconnect=SECONDS       how long programs wait for a server that has gone, before they get EIO (default "
         "60; 0: at once)\n"
         "  ro, rw, suid, nosuid, dev, nodev, exec, noexec, sync, async, dirsync, allow_other: as mount(8) has them;\n"
         "                          nosuid and nodev are the default, allow_other is for root. What a call changes on "
         "a\n"
         "                          mount with sync is on the SSD when it returns; with dirsync names are\n"
         "  relatime or atime, noatime, nodiratime\n"
         "                          access times move with the first access after a change and once a day (the "
         "default),\n"
         "                          never, or not those of directories\n"
         "  defaults, auto, noauto, nofail, nouser, _netdev, default_permissions, loud, silent, comment=..., x-...\n"
         "                          accepted, without effect: fstab and mount(8) bring them along\n";
}

}  // namespace termfs::mount
