// SPDX-License-Identifier: Apache-2.0
//
// The files of a volume's directory:
//
//   termfs.toml   settings                     region    the pages (unless `device` says where)
//   meta/         the namespace, in RocksDB    written   the region's durable written marks
//   epoch         number of the last start     lock      held by the one server or fsck     socket  where clients come
//   meta/reserve  room on its disk for removals
//   tier          there while a server runs, and after it was killed: where its memory is
//
// Thread-safety: free functions and VolumeLock on different volumes.
// Errors:        EUCLEAN: a file that makes a volume is missing or foreign.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"
#include "fs/server/volume.h"
#include "metadata/key_value_store.h"
#include "metadata/namespace.h"
#include "metadata/rocksdb_store.h"
#include "tlib/server/server.h"

namespace termfs::fs::server {

// Of the disk that meta/ is on, format and a growth of the region leave as much free, beside the file meta/reserve: for
// the engine's log, and for what it keeps free to write that a second time (metadata/disk_room.h).
inline constexpr uint64_t kMetadataReserve = uint64_t{128} << 20;
// What that file holds: room for removals, and for the end and the next start, on a disk that others have filled
// (metadata/disk_reserve.h).
inline constexpr uint64_t kDiskReserve = uint64_t{32} << 20;

struct VolumePaths {
  explicit VolumePaths(const std::string& directory)
      : root(directory),
        region(directory + "/region"),
        written(directory + "/written"),
        meta(directory + "/meta"),
        settings(directory + "/termfs.toml"),
        lock(directory + "/lock"),
        epoch(directory + "/epoch"),
        tier(directory + "/tier"),
        kept(directory + "/kept"),
        secret(directory + "/secret") {}
  std::string root, region, written, meta, settings, lock, epoch, tier, kept, secret;
};

enum class LockUse { kServe, kCheck, kRepair };

// The exclusive right to a volume, given up with the object, also by a process that dies. While it is held, the file
// says by whom: "served by process 123".
class VolumeLock {
 public:
  // EBUSY: another process has it; the text names the process. EPERM: as by CheckTrusted.
  static Result<VolumeLock> Take(const VolumePaths& paths, LockUse use);

 private:
  explicit VolumeLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// Writes `text` beside `path` and renames it there; durable when it returns.
Status ReplaceFile(const std::string& path, const std::string& text);
// A file of at most 64 KiB. EUCLEAN: none there.
Result<std::string> ReadSmallFile(const std::string& path);
Status SyncDirectory(const std::string& path);
// The number of the last start. EUCLEAN: the file is gone or damaged.
Result<uint64_t> LastEpoch(const VolumePaths& paths);
// The number of this start: one more than the last, durably.
Result<uint64_t> NextEpoch(const VolumePaths& paths);

// What is in meta/. EUCLEAN: nothing, or damage; the text says what to do.
Result<std::unique_ptr<metadata::KeyValueStore>> OpenStore(const VolumePaths& paths,
                                                           const metadata::RocksDbOptions& options = {});
// EUCLEAN: of no volume, of a foreign version, or damaged.
Result<std::unique_ptr<metadata::Namespace>> OpenNamespace(metadata::KeyValueStore& store,
                                                           const std::string& directory);

std::string ToString(const metadata::Uuid& uuid);
// The capacity is the superblock's; termfs.toml says it for people. EINVAL: it says another one, and not by a change of
// the capacity that was cut short, which has left it on the region's label.
Status CheckCapacity(const VolumePaths& paths, const VolumeSettings& settings, const metadata::Superblock& superblock);
// Bytes of memory that a server takes beside its DRAM tier, from a moment on when the metadata store, which may have
// `metadata_memory`, has taken `metadata_used`.
uint64_t BytesBesideTier(uint64_t metadata_memory, uint64_t metadata_used);
// The tier is where the settings say; `volume`: the uuid.
tlib::server::TierOptions TierOptionsOf(const VolumePaths& paths, const VolumeSettings& settings,
                                        const std::string& volume);
// `volume`: the uuid, by which the region knows whose it is. Without a tier.
Result<tlib::server::RegionOptions> RegionOptionsOf(const VolumePaths& paths, const VolumeSettings& settings,
                                                    const std::string& volume);

}  // namespace termfs::fs::server
