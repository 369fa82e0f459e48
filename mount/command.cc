// SPDX-License-Identifier: Apache-2.0
#include "mount/command.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "base/trusted_path.h"
#include "fs/server/settings.h"
#include "mount/mount_point.h"
#include "mount/size.h"

namespace termfs::mount {

int Failed(const Status& status) {
  std::fprintf(stderr, "termfs: %s\n", status.ToString().c_str());
  return kExitFailed;
}

int BadUsage(const std::string& command, const Status& status) {
  std::fprintf(stderr, "termfs: %s\nSee termfs %s --help.\n", status.ToString().c_str(), command.c_str());
  return kExitUsage;
}

int Print(const std::string& text) {
  const bool printed = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  return printed ? kExitOk : Failed(ErrnoStatus("write to standard output"));
}

namespace {

// A size that is allowed as that setting.
Result<uint64_t> ParseSizeOf(uint64_t fs::server::VolumeSettings::*setting, const std::string& text) {
  ASSIGN_OR_RETURN(const uint64_t bytes, ParseSize(text));
  fs::server::VolumeSettings settings;
  settings.capacity_bytes = fs::server::kMaxCapacity;
  settings.*setting = bytes;
  if (const Status allowed = fs::server::CheckSettings(settings); !allowed.ok()) {
    return Status::Error(EINVAL, "'" + text + "': " + std::string(allowed.message()));
  }
  return bytes;
}

}  // namespace

Result<uint64_t> ParseCapacity(const std::string& text) {
  return ParseSizeOf(&fs::server::VolumeSettings::capacity_bytes, text);
}

Result<uint64_t> ParseMetadataMemory(const std::string& text) {
  return ParseSizeOf(&fs::server::VolumeSettings::metadata_memory_bytes, text);
}

Result<std::string> VolumePath(const std::string& address) {
  const std::unique_ptr<char, void (*)(void*)> path(realpath(address.c_str(), nullptr), &free);
  if (path == nullptr) {
    const int code = errno;
    if (code == ENOENT && address.find('/') == std::string::npos) {
      return Status::Error(code, address + " does not exist; a server on another host is HOST:PORT, such as " +
                                     address + ":" + std::to_string(tlib::kControlPort));
    }
    return Status::Errno(code, address);
  }
  struct stat st {};
  if (stat(path.get(), &st) != 0) {
    return ErrnoStatus(address);
  }
  if (!S_ISDIR(st.st_mode)) {
    return Status::Error(ENOTDIR, address + " is a file; a volume is a directory");
  }
  const std::string lock = std::string(path.get()) + "/lock";
  if (access(lock.c_str(), F_OK) != 0 && errno == ENOENT) {
    if (const Result<MountDescription> mount = DescribeMount(address); mount.ok()) {
      return Status::Error(
          EINVAL, address + " is where the volume " + mount->address + " is mounted; name the volume's own directory");
    }
    return Status::Error(EUCLEAN, address + " is not a termfs volume (no file 'lock' in it), nor is one mounted there");
  }
  return TrustedDirectory(address);
}

Result<fs::client::ServerAddress> VolumeAddress(const std::string& address, const std::string& secret) {
  if (!fs::client::MeansHost(address)) {
    ASSIGN_OR_RETURN(std::string path, VolumePath(address));
    return fs::client::ServerAddress(std::move(path));
  }
  ASSIGN_OR_RETURN(auto host, fs::client::ParseHostPort(address));
  if (secret.empty()) {
    return Status::Error(
        EINVAL, "--secret is missing: a copy of the file 'secret' in the directory of the volume at " + address);
  }
  ASSIGN_OR_RETURN(std::string file, AbsolutePath(secret));  // a mount has another working directory
  return fs::client::ServerAddress(std::move(host), std::move(file));
}

Result<fs::client::ServerAddress> ServedAddress(const std::string& place, const std::string& secret) {
  if (fs::client::MeansHost(place)) {
    return VolumeAddress(place, secret);
  }
  const Result<MountDescription> mount = DescribeMount(place);
  if (mount.ok()) {
    return mount->server();
  }
  if (mount.status().code() != EINVAL && mount.status().code() != ENOENT) {
    return mount.status();
  }
  return VolumeAddress(place, secret);
}

Result<std::string> AbsolutePath(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const std::unique_ptr<char, void (*)(void*)> resolved(realpath(folder.c_str(), nullptr), &free);
  if (resolved == nullptr) {
    return ErrnoStatus(path);
  }
  const std::string name = path.substr(slash == std::string::npos ? 0 : slash + 1);
  const std::string base(resolved.get());
  return (base == "/" ? base : base + "/") + name;
}

}  // namespace termfs::mount
