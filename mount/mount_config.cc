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
// Accepted, since fstab and mount(8) bring them along: they are meant for mount(8), for a file system of a block
// device, or are what termfs does anyway.
constexpr std::array<std::string_view, 24> kPassedOver = {
    "defaults",   "auto",     "noauto",     "_netdev",    "nofail",        "user",
    "nouser",     "users",    "nousers",    "group",      "nogroup",       "owner",
    "noowner",    "loud",     "silent",     "mand",       "nomand",        "iversion",
    "noiversion", "lazytime", "nolazytime", "norelatime", "nostrictatime", "default_permissions"};
// The same, with a value.
constexpr std::array<std::string_view, 4> kRemarks = {"comment", "user", "uhelper", "helper"};

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

bool IsPassedOver(std::string_view option, std::string_view name) {
  return name.starts_with("x-") || name.starts_with("X-") || Contains(kPassedOver, option) ||
         (name != option && Contains(kRemarks, name));
}

// What the front end has to know of an option that the kernel gets, too.
void NoteKernelOption(std::string_view option, MountConfig& config) {
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
}

// Options that libfuse does not know, or only the opposite of. False: it is none of them.
bool ApplySwitch(std::string_view option, MountConfig& config) {
  if (option == "relatime" || option == "atime" || option == "strictatime") {
    config.access_times = true;
    std::erase(config.kernel, "noatime");
  } else if (option == "diratime") {
    config.directory_access_times = true;
    std::erase(config.kernel, "nodiratime");
  } else if (option == "symfollow" || option == "nosymfollow") {
    config.follow_symlinks = option == "symfollow";
  } else if (option == "acl" || option == "noacl") {
    config.acl = option == "acl";
  } else {
    return false;
  }
  return true;
}

// One with a value. Nothing: there is no such option.
std::optional<Status> ApplyValued(std::string_view name, std::string_view value, MountConfig& config) {
  if (name == "bitmap") {
    return ApplyBitmap(value, config);
  }
  if (name == "secret") {
    config.secret = value;
    return value.empty() ? Status::Error(EINVAL, "secret= needs the name of a file") : Status::Ok();
  }
  if (name == "rdma") {
    config.rdma = value;
    return value.empty() ? Status::Error(EINVAL, "rdma= needs the name or an address of an RDMA device") : Status::Ok();
  }
  if (name == "rdma-wire") {
    ASSIGN_OR_RETURN(config.rdma_wire, tlib::client::ParseWire(value));
    return Status::Ok();
  }
  if (name == "tls") {
    config.plain_data = value == "off";
    return config.plain_data || value == "on" ? Status::Ok()
                                              : Status::Error(EINVAL, fmt::format("tls={}: it is on or off", value));
  }
  if (name == "cache") {
    config.grants = value == "granted";
    return config.grants || value == "none"
               ? Status::Ok()
               : Status::Error(EINVAL, fmt::format("cache={}: it is granted or none", value));
  }
  if (name == "fuse") {
    return ParseTransport(value, config.fuse)
               ? Status::Ok()
               : Status::Error(EINVAL, fmt::format("fuse={}: it is auto, io_uring or device", value));
  }
  if (name == "threads") {
    return ApplyCount(name, value, 1, 256, config.threads);
  }
  if (name == "timeout") {
    return ApplyCount(name, value, 1, 3600, config.timeout);
  }
  if (name == "reconnect") {
    return ApplyCount(name, value, 0, 3600, config.reconnect);
  }
  return std::nullopt;
}

// Nothing: there is no such option.
std::optional<Status> ApplyOne(std::string_view option, MountConfig& config) {
  const size_t equals = option.find('=');
  const std::string_view name = option.substr(0, equals);
  if (IsPassedOver(option, name)) {
    return Status::Ok();
  }
  std::optional<Status> done;
  if (Contains(kKernelOptions, option)) {
    NoteKernelOption(option, config);
    config.kernel.emplace_back(option);
    done = Status::Ok();
  } else if (equals != std::string_view::npos) {
    done = ApplyValued(name, option.substr(equals + 1), config);
  } else if (ApplySwitch(option, config)) {
    done = Status::Ok();
  }
  if (done) {
    config.given.emplace_back(option);
  }
  return done;
}

}  // namespace

Status ApplyMountOptions(std::string_view options, MountConfig& config, UnknownOptions unknown) {
  while (!options.empty()) {
    const size_t comma = options.find(',');
    const std::string_view option = options.substr(0, comma);
    options = comma == std::string_view::npos ? std::string_view() : options.substr(comma + 1);
    const std::optional<Status> applied = option.empty() ? Status::Ok() : ApplyOne(option, config);
    if (applied) {
      RETURN_IF_ERROR(*applied);
    } else if (unknown == UnknownOptions::kRefused) {
      return Status::Error(EINVAL, fmt::format("unknown mount option '{}'", option));
    }
  }
  return Status::Ok();
}

std::string NeedsNewMount(const MountConfig& now, const MountConfig& wanted) {
  const std::pair<const char*, bool> differ[] = {
      {"bitmap", now.bitmap != wanted.bitmap},
      {"secret", now.secret != wanted.secret},
      {"rdma", now.rdma != wanted.rdma},
      {"rdma-wire", now.rdma_wire != wanted.rdma_wire},
      {"tls", now.plain_data != wanted.plain_data},
      {"cache", now.grants != wanted.grants},
      {"acl", now.acl != wanted.acl},
      {"threads", now.threads != wanted.threads},
      {"fuse", now.fuse != wanted.fuse},
      {"timeout", now.timeout != wanted.timeout},
      {"reconnect", now.reconnect != wanted.reconnect},
      {"dirsync", now.synchronous_names != wanted.synchronous_names},  // the kernel changes it at no remount
  };
  for (const auto& [name, differs] : differ) {
    if (differs) {
      return name;
    }
  }
  return "";
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
         "  rdma-wire=iwarp|roce    what the software RNIC speaks over a network: iWARP over TCP (the default, where "
         "the "
         "server\n"
         "                          does so, too), or RoCEv2 over UDP\n"
         "  tls=on|off              whether data travels inside TLS over a network (the default), or, where the server "
         "was\n"
         "                          started with --tls off, readable and open to forgery. RoCEv2 is never inside TLS:\n"
         "                          its requests and replies are sealed, unless off; READs of data are not\n"
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
         "  ro, rw, suid, nosuid, dev, nodev, exec, noexec, sync, async, dirsync, symfollow, nosymfollow, allow_other\n"
         "                          as mount(8) has them; allow_other and nosymfollow are for root. What a call "
         "changes\n"
         "                          on a mount with sync is on the SSD when it returns; with dirsync names are. The\n"
         "                          default is nosuid,nodev; by mount(8) it is suid,dev, as of other file systems\n"
         "  relatime, atime or strictatime, noatime, diratime, nodiratime\n"
         "                          access times move with the first access after a change and once a day (the\n"
         "                          default), never, or not those of directories\n"
         "  defaults, auto, noauto, nofail, user, users, group, owner, _netdev, default_permissions, lazytime,\n"
         "  iversion, mand, the opposites of these, loud, silent, comment=..., x-..., X-...\n"
         "                          accepted, without effect: fstab and mount(8) bring them along\n"
         "mount -o remount,... of mount(8) changes ro, suid, dev, exec, sync, symfollow, access times, or to the\n"
         "opposite of these, while the volume is used.\n";
}

}  // namespace termfs::mount
