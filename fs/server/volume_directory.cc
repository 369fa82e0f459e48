// SPDX-License-Identifier: Apache-2.0
#include "fs/server/volume_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>

#include "base/file_lock.h"
#include "base/log.h"
#include "base/page.h"
#include "base/size.h"
#include "base/trusted_path.h"
#include "fs/server/settings.h"
#include "metadata/rocksdb_store.h"
#include "tlib/server/region_label.h"

namespace termfs::fs::server {

namespace {

constexpr size_t kMaxSmallFile = 64 << 10;
// Of memory that a server takes beside its DRAM tier after it has begun: sessions and what waits to be stored; and the
// metadata store's.
constexpr uint64_t kServerBytes = uint64_t{32} << 20;

// What a region of `pages` may grow to before the server is started anew: address space in the server and in every
// client.
uint64_t RoomFor(uint64_t pages) {
  constexpr uint64_t kFactor = 16;
  constexpr uint64_t kLeast = uint64_t{1} << 24;  // 64 GiB
  return std::max(pages, std::clamp(pages * kFactor, kLeast, kMaxCapacity >> kPageBits));
}

Status WriteAll(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      return ErrnoStatus("write " + path);
    }
    text.remove_prefix(static_cast<size_t>(n));
  }
  return Status::Ok();
}

Status WriteNewFile(const std::string& path, std::string_view text) {
  unlink(path.c_str());  // of a start that was cut short
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!fd.valid()) {
    return ErrnoStatus("create " + path);
  }
  RETURN_IF_ERROR(WriteAll(fd.get(), text, path));
  return fsync(fd.get()) == 0 ? Status::Ok() : ErrnoStatus("sync " + path);
}

// What the holder of a lock wrote into it; never trusted further than for a message, and for whether to wait a little.
std::string Holder(int fd) {
  char text[64];
  const ssize_t got = pread(fd, text, sizeof(text), 0);
  const std::string holder(text, got > 0 ? static_cast<size_t>(got) : 0);
  const bool plain = std::all_of(holder.begin(), holder.end(), [](char c) { return c >= ' ' && c <= '~'; });
  return holder.empty() || !plain ? "served or checked by another process" : holder;
}

// The process at the end of what Holder said; 0: none.
pid_t ProcessOf(const std::string& holder) {
  pid_t pid = 0;
  const size_t at = holder.rfind(' ') + 1;
  const auto [end, error] = std::from_chars(holder.data() + at, holder.data() + holder.size(), pid);
  return error == std::errc() && end == holder.data() + holder.size() ? pid : 0;
}

// errno says why the file `lock` could not be opened or examined.
Status NoLock(const VolumePaths& paths) {
  return errno == ENOENT
             ? Status::Error(EUCLEAN,
                             paths.root + " is not a termfs volume (no file 'lock' in it); termfs format makes one")
             : ErrnoStatus("open " + paths.lock);
}

}  // namespace

Status CheckTrusted(const std::string& directory) {
  constexpr char kMayBeLinks[] = " region written meta log ";  // an administrator has them on other disks
  ASSIGN_OR_RETURN(const std::string path, TrustedDirectory(directory));
  return CheckContents(path, kMayBeLinks);
}

Result<VolumeLock> VolumeLock::Take(const VolumePaths& paths, LockUse use) {
  RETURN_IF_ERROR(CheckTrusted(paths.root));
  constexpr int kFlags = O_NOFOLLOW | O_CLOEXEC;  // it is written to
  UniqueFd fd(open(paths.lock.c_str(), O_RDWR | kFlags));
  if (!fd.valid() && errno == EROFS && use == LockUse::kCheck) {
    fd = UniqueFd(open(paths.lock.c_str(), O_RDONLY | kFlags));
  }
  if (!fd.valid()) {
    return NoLock(paths);
  }
  ASSIGN_OR_RETURN(const bool locked, LockWhenDead(fd, paths.lock, [&fd] { return ProcessOf(Holder(fd.get())); }));
  if (!locked) {
    return Status::Error(EBUSY, paths.root + " is " + Holder(fd.get()) + "; that has to end first");
  }
  // For people only: on a full disk the lock holds without it.
  const std::string holder =
      std::string(use == LockUse::kServe ? "served" : "checked") + " by process " + std::to_string(getpid());
  // In its place, as a full disk may have no other.
  const bool written = pwrite(fd.get(), holder.data(), holder.size(), 0) == static_cast<ssize_t>(holder.size());
  if (ftruncate(fd.get(), written ? static_cast<off_t>(holder.size()) : 0) != 0) {
    LOG_WARNING("{}: cannot say there who holds it", paths.lock);
  }
  return VolumeLock(std::move(fd));
}

Status SyncDirectory(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || fsync(fd.get()) != 0) {
    return ErrnoStatus("sync " + path);
  }
  return Status::Ok();
}

Status ReplaceFile(const std::string& path, const std::string& text) {
  const std::string beside = path + ".new";
  Status status = WriteNewFile(beside, text);
  if (status.ok() && rename(beside.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus("rename " + beside);
  }
  if (!status.ok()) {
    unlink(beside.c_str());
    return status;
  }
  const size_t slash = path.rfind('/');
  return SyncDirectory(slash == std::string::npos ? "." : path.substr(0, slash));
}

Result<std::string> ReadSmallFile(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) {
    return errno == ENOENT || errno == ENOTDIR
               ? Status::Error(EUCLEAN, "the volume is not whole: there is no " + path + "; restore it from a backup")
               : ErrnoStatus("open " + path);
  }
  std::string text(kMaxSmallFile + 1, '\0');
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t n = read(fd.get(), text.data() + have, text.size() - have);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      return ErrnoStatus("read " + path);
    }
    if (n == 0) {
      break;
    }
    have += static_cast<size_t>(n);
  }
  if (have > kMaxSmallFile) {
    return Status::Error(EINVAL, path + " is too long");
  }
  text.resize(have);
  return text;
}

Result<uint64_t> LastEpoch(const VolumePaths& paths) {
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(paths.epoch));
  uint64_t epoch = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), epoch);
  if (error != std::errc() || (end != text.data() + text.size() && *end != '\n') || epoch == UINT64_MAX) {
    return Status::Error(EUCLEAN, paths.epoch +
                                      " does not hold the number of the volume's last start; write one there "
                                      "that is larger than every one in the server's log");
  }
  return epoch;
}

Result<uint64_t> NextEpoch(const VolumePaths& paths) {
  ASSIGN_OR_RETURN(const uint64_t last, LastEpoch(paths));
  RETURN_IF_ERROR(ReplaceFile(paths.epoch, std::to_string(last + 1) + "\n"));
  return last + 1;
}

Result<std::unique_ptr<metadata::KeyValueStore>> OpenStore(const VolumePaths& paths,
                                                           const metadata::RocksDbOptions& options) {
  metadata::RocksDbOptions with_reserve = options;
  with_reserve.reserve_bytes = kDiskReserve;
  auto store = metadata::OpenRocksDb(paths.meta, with_reserve);
  const int code = store.status().code();
  if (code == EBADMSG) {
    return Status::Error(EUCLEAN, store.status().ToString());
  }
  if (code != ENOENT && code != EUCLEAN) {
    return store;
  }
  return Status::Error(EUCLEAN, store.status().ToString() + "; what is missing or damaged in " + paths.meta +
                                    " has to be restored from a backup");
}

Result<std::unique_ptr<metadata::Namespace>> OpenNamespace(metadata::KeyValueStore& store,
                                                           const std::string& directory) {
  auto names = metadata::Namespace::Open(store);
  const int code = names.status().code();
  if (code != ENOENT && code != EPROTONOSUPPORT && code != EUCLEAN) {
    return names;
  }
  return Status::Error(EUCLEAN, directory + ": " + names.status().ToString());
}

std::string ToString(const metadata::Uuid& uuid) {
  std::string text;
  for (size_t i = 0; i < uuid.size(); ++i) {
    text += fmt::format("{:02x}{}", uuid[i], i == 3 || i == 5 || i == 7 || i == 9 ? "-" : "");
  }
  return text;
}

Status CheckCapacity(const VolumePaths& paths, const VolumeSettings& settings, const metadata::Superblock& superblock) {
  const uint64_t pages = settings.capacity_bytes >> kPageBits;
  if (pages == superblock.capacity_pages) {
    return Status::Ok();
  }
  const std::string& device = settings.device.empty() ? paths.region : settings.device;
  const UniqueFd fd(open(device.c_str(), O_RDONLY | O_CLOEXEC));
  using Label = Result<tlib::server::RegionLabel>;
  const Label label =
      fd.valid() ? tlib::server::ReadRegionLabel(fd.get(), device) : Label(ErrnoStatus("open " + device));
  if (label.ok() && label->pages == pages && pages > superblock.capacity_pages) {
    return Status::Ok();
  }
  return Status::Error(EINVAL, paths.settings + ": capacity must be that of the volume, " +
                                   std::to_string(superblock.capacity_pages << kPageBits) + " (" +
                                   ReadableSize(superblock.capacity_pages << kPageBits) + "); 'termfs set' changes it");
}

uint64_t BytesBesideTier(uint64_t metadata_memory, uint64_t metadata_used) {
  return kServerBytes + metadata_memory - std::min(metadata_memory, metadata_used);
}

tlib::server::TierOptions TierOptionsOf(const VolumePaths& paths, const VolumeSettings& settings,
                                        const std::string& volume) {
  if (settings.memory_directory == "none") {
    // The record of the server before, which may have had one.
    return {.record = paths.tier, .volume = volume, .spare_bytes = BytesBesideTier(settings.metadata_memory_bytes, 0)};
  }
  const bool own = settings.memory_directory.empty();
  return {.directory = (own ? "/run/termfs" : settings.memory_directory) + "/" + volume,
          .own_tmpfs = own,
          .record = paths.tier,
          .volume = volume,
          .spare_bytes = BytesBesideTier(settings.metadata_memory_bytes, 0)};
}

Result<tlib::server::RegionOptions> RegionOptionsOf(const VolumePaths& paths, const VolumeSettings& settings,
                                                    const std::string& volume) {
  ASSIGN_OR_RETURN(const driver::RegionKind kind, driver::ParseRegionKind(settings.kind));
  const uint64_t pages = settings.capacity_bytes >> kPageBits;
  using tlib::server::FrameChoice;
  return tlib::server::RegionOptions{.kind = kind,
                                     .device = settings.device.empty() ? paths.region : settings.device,
                                     .written_log = paths.written,
                                     .volume = volume,
                                     .pages = pages,
                                     .max_pages = RoomFor(pages),
                                     .dram_ratio = settings.dram_ratio,
                                     .choice = settings.promoter == "heat"     ? FrameChoice::kHeat
                                               : settings.promoter == "recent" ? FrameChoice::kRecent
                                                                               : FrameChoice::kStatic,
                                     .sample_period = std::chrono::milliseconds(settings.sample_period_ms),
                                     .tier = {}};
}

}  // namespace termfs::fs::server
