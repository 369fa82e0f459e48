// SPDX-License-Identifier: Apache-2.0
//
// What a DRAM tier takes of the host's memory, and whether that fits. It is asked before any is taken: the kernel
// rather kills a process than refuses it a page, and memory on a tmpfs stays when the process is dead.
//
// Thread-safety: free functions.
// Units:         pages and frames of 4 KiB, bytes.
#pragma once

#include <cstdint>
#include <string>

#include "base/host_memory.h"
#include "base/result.h"

namespace termfs::tlib::server {

// What the files of a tier hold: `frames`, which get memory in chunks, as many as a region with room for `max_pages`
// has them; RNIC page table and page states.
uint64_t TierBytes(uint64_t pages, uint64_t frames, uint64_t max_pages);

struct TierDemand {
  uint64_t pages = 0;   // that the region shall have
  uint32_t frames = 0;  // that shall be in memory
  uint64_t max_pages = 0;
  bool by_ratio = true;  // the ratio says how many; false: the kind of the region does
  uint64_t has = 0;      // bytes that a tier has already, and that this one takes over or goes on with
  uint64_t spare = 0;    // bytes that must be left
  bool beside = true;    // what the process keeps of each page beside the tier's files counts, too
};

// All that it takes; what it has, and what must be left, is not looked at.
uint64_t BytesOf(const TierDemand& demand);

// ENOMEM: it does not fit into what is available. The text ends with what would, the largest ratio or capacity; and
// names metadata-memory where only what must be left does not fit.
Status CheckTierFits(const TierDemand& demand, const MemoryBound& bound);

}  // namespace termfs::tlib::server
