// SPDX-License-Identifier: Apache-2.0
//
// A volume on its server: the directory with region, written, meta/, termfs.toml, lock and socket. Made by
// FormatVolume, served by a VolumeServer, examined by CheckVolume.
//
// Thread-safety: free functions may run concurrently on different volumes; the lock file excludes two on one.
// Errors:        EEXIST the directory is in use or not empty; EBUSY another server or fsck holds the lock; EINVAL a bad
//                setting (the text names it and the range); EPERM another user could change it; EUCLEAN not a volume,
//                or one of a foreign version.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace termfs::driver {
class Nic;  // passed on to tlib; nothing here looks inside
}
namespace termfs::metadata {
class KeyValueStore;
}

namespace termfs::fs::server {

// The keys of termfs.toml; unknown keys are refused. What is not given keeps its default.
struct VolumeSettings {
  uint64_t capacity_bytes = 0;  // S; written by format
  double dram_ratio = 0.5;
  std::string device;         // empty: the file `region` in the directory
  std::string kind = "term";  // memory-region kind
  std::string promoter = "heat";
  uint32_t workers = 1;
  uint32_t rnic_threads = 0;  // of the software RNIC, for other hosts; 0: by processors
  uint32_t metadata_threads = 4;
  // Memory of the metadata store: cached blocks of its files, and what is not in them yet.
  uint64_t metadata_memory_bytes = uint64_t{256} << 20;
  uint32_t max_sessions = 4096;  // mounts and other clients at a time; administrators get in all the same
  uint32_t sample_period_ms = 250;
  // Where the DRAM tier outlives a killed server: an existing tmpfs, in which the volume gets a directory of its own.
  // Empty: /run/termfs, with a tmpfs of the volume's own. "none": nowhere, what was not synced dies with the server.
  std::string memory_directory;
  // Where it listens for clients on other hosts: host, host:port, [IPv6 address]:port; such as 0.0.0.0. Empty: nowhere.
  std::string listen;
  // RDMA device, by name or address, that serves clients on other hosts. Empty: the software RNIC does.
  std::string rdma;
  std::string rdma_wire;  // "iwarp", "roce": nothing else over a network; empty: what both ends speak best
  std::string tls;        // "off": iWARP outside of TLS for mounts that ask for it; "on" and empty: for none
};

Result<VolumeSettings> LoadSettings(const std::string& directory);

struct FormatOptions {
  VolumeSettings settings;
  std::function<void(uint64_t done_bytes, uint64_t all_bytes)> progress;  // may be null
  bool overwrite = false;  // a file system, partition table or volume on the block device may be lost
};
// `directory` is empty or does not exist. A format that fails leaves everything as it was; of a block device that was
// to be overwritten, the beginning may be gone.
Status FormatVolume(const std::string& directory, const FormatOptions& options);

// EPERM: another user than root and this process's could change the volume, or where its files lead to: the directory,
// its parents, and all that is in it (base/trusted_path.h). The region, its marks, meta/ and the log may be links. The
// text names the path, its owner and the remedy. Whatever opens the volume checks this first; this is for a caller that
// opens or makes a file in `directory` before.
Status CheckTrusted(const std::string& directory);

class VolumeServer {
 public:
  virtual ~VolumeServer() = default;  // as Stop
  // Opens the store in meta/.
  using StoreOpener = std::function<Result<std::unique_ptr<metadata::KeyValueStore>>(const std::string& path)>;
  // Opens and locks the volume, brings to an end what a crash has cut short, and serves it on its socket; returns when
  // clients can connect. `nic` outlives it. Without `open_store`: RocksDB.
  static Result<std::unique_ptr<VolumeServer>> Start(driver::Nic& nic, const std::string& directory,
                                                     const VolumeSettings& settings,
                                                     const StoreOpener& open_store = nullptr);
  // Ends sessions, flushes everything, closes. Idempotent.
  virtual Status Stop() = 0;
};

struct CheckReport {
  uint64_t inodes = 0;
  uint64_t directories = 0;
  uint64_t extents = 0;
  uint64_t pages_used = 0;
  uint64_t repaired = 0;               // files that something was done for
  std::string kept_memory;             // where a killed server left its memory for the next one; empty: there is none
  std::optional<uint64_t> kept_pages;  // newer there than on the SSD; absent: cannot be told
  std::vector<std::string> problems;   // empty: the volume is sound; of very many, some
  uint64_t problem_count = 0;          // all of them
};
// The volume must not be served. With `repair` what a crash has cut short is ended first: files that were unlinked
// while open are freed, truncations ended, space allocated ahead of growth given back. (A server does so when it
// starts.) Without it, read-only.
Result<CheckReport> CheckVolume(const std::string& directory, bool repair = false);

}  // namespace termfs::fs::server
