// SPDX-License-Identifier: Apache-2.0
//
// Makes a volume. The file `lock`, by which a directory is known as a volume, comes last: what was interrupted is none.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>

#include "base/clock.h"
#include "base/log.h"
#include "base/page.h"
#include "base/random.h"
#include "base/size.h"
#include "base/trusted_path.h"
#include "fs/server/settings.h"
#include "fs/server/volume_directory.h"
#include "metadata/namespace.h"
#include "metadata/rocksdb_store.h"

namespace termfs::fs::server {

namespace {

Status CheckEmpty(const std::string& directory) {
  DIR* dir = opendir(directory.c_str());
  if (dir == nullptr) {
    return errno == ENOTDIR ? Status::Error(ENOTDIR, directory + " is no directory; a volume is made in one")
                            : ErrnoStatus("open " + directory);
  }
  bool empty = true;
  while (const dirent* entry = readdir(dir)) {
    const std::string_view name = entry->d_name;
    empty &= name == "." || name == "..";
  }
  closedir(dir);
  return empty ? Status::Ok()
               : Status::Error(EEXIST, directory + " is not empty; choose a directory that is empty or does not exist");
}

Status CheckSpace(const std::string& directory, const VolumeSettings& settings) {
  struct statvfs use = {};
  if (statvfs(directory.c_str(), &use) != 0) {
    return ErrnoStatus("statvfs " + directory);
  }
  const unsigned __int128 available = static_cast<unsigned __int128>(use.f_bavail) * use.f_frsize;
  const uint64_t needed = kMetadataReserve + kDiskReserve + (settings.device.empty() ? settings.capacity_bytes : 0);
  if (available < needed) {
    return Status::Error(ENOSPC, directory + " has " + ReadableSize(static_cast<uint64_t>(available)) +
                                     " free, the volume needs " + ReadableSize(needed));
  }
  return Status::Ok();
}

// The directory, or where it is to be made.
Status CheckPlace(const std::string& directory) {
  const Result<std::string> there = TrustedDirectory(directory);
  if (there.status().code() != ENOENT) {
    return there.ok() || there.status().code() == ENOTDIR ? Status::Ok()
                                                          : there.status();  // CheckEmpty says what it is
  }
  return TrustedFile(directory).status();
}

// Before it is known where and when it will be served: as if it were alone.
Status CheckMemory(const std::string& directory, const VolumeSettings& settings) {
  ASSIGN_OR_RETURN(auto region, RegionOptionsOf(VolumePaths(directory), settings, ""));
  region.tier = TierOptionsOf(VolumePaths(directory), settings, "");
  return tlib::server::Server::CheckMemory(region);
}

Result<metadata::Uuid> NewUuid() {
  metadata::Uuid uuid;
  RETURN_IF_ERROR(SecureRandom(uuid.data(), uuid.size()));
  uuid[6] = static_cast<uint8_t>((uuid[6] & 0x0f) | 0x40);  // a random uuid, as RFC 4122 marks it
  uuid[8] = static_cast<uint8_t>((uuid[8] & 0x3f) | 0x80);
  return uuid;
}

Status FormatNamespace(const VolumePaths& paths, const VolumeSettings& settings, const metadata::Uuid& uuid) {
  metadata::FormatOptions options;
  options.uuid = uuid;
  options.capacity_pages = settings.capacity_bytes >> kPageBits;
  options.now = Clock::System().RealTime();
  options.root_owner = {.uid = geteuid(), .gid = getegid()};
  // RocksDB would let everybody read it, and the volume's directory may do so, too.
  if (mkdir(paths.meta.c_str(), 0700) != 0) {
    return ErrnoStatus("create " + paths.meta);
  }
  ASSIGN_OR_RETURN(const auto store, OpenStore(paths, {.create_if_missing = true}));
  RETURN_IF_ERROR(metadata::Namespace::Format(*store, options));
  return store->SyncWal();
}

// Everything but the region.
Status FillAround(const VolumePaths& paths, const VolumeSettings& settings, const metadata::Uuid& uuid) {
  RETURN_IF_ERROR(FormatNamespace(paths, settings, uuid));
  RETURN_IF_ERROR(SaveSettings(paths.root, settings));
  RETURN_IF_ERROR(ReplaceFile(paths.epoch, "0\n"));
  return ReplaceFile(paths.lock, "");
}

Status Fill(const std::string& directory, const FormatOptions& options) {
  const VolumePaths paths(directory);
  RETURN_IF_ERROR(CheckSpace(directory, options.settings));
  ASSIGN_OR_RETURN(const metadata::Uuid uuid, NewUuid());
  ASSIGN_OR_RETURN(auto region, RegionOptionsOf(paths, options.settings, ToString(uuid)));
  region.overwrite = options.overwrite;
  RETURN_IF_ERROR(tlib::server::Server::FormatRegion(region, options.progress));
  Status filled = FillAround(paths, options.settings, uuid);
  if (!filled.ok()) {
    tlib::server::Server::RemoveRegion(region);
  }
  return filled;
}

// Of a directory that was empty before: what could not be finished goes, so that it can be tried again.
void RemoveContents(const std::string& directory) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    std::filesystem::remove_all(entry.path(), error);
  }
  if (error) {
    LOG_WARNING("{} cannot be emptied again: {}", directory, error.message());
  }
}

}  // namespace

Status FormatVolume(const std::string& directory, const FormatOptions& options) {
  RETURN_IF_ERROR(CheckSettings(options.settings));
  RETURN_IF_ERROR(CheckMemory(directory, options.settings));
  RETURN_IF_ERROR(CheckPlace(directory));
  const bool made = mkdir(directory.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) {
    return ErrnoStatus("create " + directory);
  }
  if (!made) {
    RETURN_IF_ERROR(CheckEmpty(directory));
  }
  Status status = Fill(directory, options);
  if (!status.ok()) {
    RemoveContents(directory);
    if (made) {
      rmdir(directory.c_str());
    }
  }
  return status;
}

}  // namespace termfs::fs::server
