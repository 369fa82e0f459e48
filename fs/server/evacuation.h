// SPDX-License-Identifier: Apache-2.0
//
// Evacuation: moves what files have at or beyond a line of the region to below it, while they are read and written.
//
// A part of an extent goes this way, a few megabytes at once:
//   1. Enter the inode's gate, exclusive, and revoke the maps of all sessions: nobody writes, and who READs by an old
//      map looks at it again afterwards (coherence.h).
//   2. On the reclaimer's thread, so that nothing pending is freed meanwhile: reserve pages below the line; copy; flush
//      them. Readers by RPC still read where the bytes were.
//   3. One transaction gives the file the new pages and makes the old ones pending-free. Then the map in memory is
//      changed, and `frees` is raised: who has read the old pages reads again.
//   4. Leave the gate. The reclaimer frees the old pages when the transaction is durable.
// A crash before the transaction leaves the new pages pending-free; after it, the old ones.
//
// Thread-safety: one caller at a time, where it may block; not from a task.
// Ownership:     everything is borrowed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "fs/server/coherence.h"
#include "fs/server/inode_table.h"
#include "fs/server/reclaimer.h"
#include "metadata/namespace.h"
#include "tlib/server/server.h"

namespace termfs::fs::server {

class Evacuation {
 public:
  struct Parts {
    metadata::Namespace& names;
    InodeTable& inodes;
    Coherence& coherence;
    Reclaimer& reclaimer;
    std::atomic<uint64_t>& versions;
    tlib::server::Server& server;
  };
  explicit Evacuation(const Parts& parts) : p_(parts) {}

  struct Pass {
    uint64_t found = 0;  // pages that were to be moved
    uint64_t moved = 0;
    Status obstacle;  // why not all of them
  };
  // Goes once through all extents. REQUIRES: the namespace is confined. ENOSPC: there is no place to move to;
  // ECANCELED: `cancelled` said so, or the server stops.
  Result<Pass> Run(const std::function<bool()>& cancelled);

 private:
  Result<bool> MoveOne(uint64_t ino, const metadata::Extent& extent);
  Status EnterAlone(Inode& inode);
  Result<bool> Carry(Inode& inode, const metadata::Extent& extent);
  Status Copy(const metadata::Extent& extent, const std::vector<metadata::RegionRange>& to);

  const Parts p_;
};

}  // namespace termfs::fs::server
