// SPDX-License-Identifier: Apache-2.0
//
// Capacity: how large the volume is, and changing it while it is served. See "A region that changes its size" in
// docs/design_notes.md.
//
// Thread-safety: Set one caller at a time, where it may block; the rest from any thread.
// Ownership:     everything is borrowed.
// Durability:    what Set returned is kept. After a crash the volume has the old capacity or the new one.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "metadata/namespace.h"
#include "tlib/server/server.h"

namespace termfs::fs::server {

class Capacity {
 public:
  // `device`: the file or block device of the region; `meta`: where the namespace is; `note`: writes the capacity to
  // the settings, durably.
  Capacity(metadata::Namespace& names, tlib::server::Server& server, std::string device, std::string meta,
           std::function<Status(uint64_t pages)> note)
      : names_(names), server_(server), device_(std::move(device)), meta_(std::move(meta)), note_(std::move(note)) {}

  // EINVAL: smaller than now, or more than this server has room for; ENOSPC, ENOMEM: the SSD, the tmpfs of the DRAM
  // tier or the machine is too small. After an error nothing has changed.
  Status Set(uint64_t pages);

  uint64_t pages() const { return names_.superblock().capacity_pages; }
  // What it is being changed to; what it is when nothing is under way.
  uint64_t target_pages() const;

 private:
  Status Grow(uint64_t pages);
  Status CheckDisk(uint64_t more_bytes) const;

  metadata::Namespace& names_;
  tlib::server::Server& server_;
  const std::string device_;
  const std::string meta_;
  const std::function<Status(uint64_t pages)> note_;
  std::atomic<uint64_t> target_{0};  // pages; 0: none
};

}  // namespace termfs::fs::server
