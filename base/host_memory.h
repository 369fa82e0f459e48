// SPDX-License-Identifier: Apache-2.0
//
// How much memory this process may still take: of the machine, and of each memory cgroup (version 1 or 2) that it is
// in, up to the root of those that can be seen. Files that can be dropped count as free, shared memory does not.
//
// Thread-safety: free functions; what they return is true at that moment only.
// Errors:        what cannot be read sets no bound.
// Units:         bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace termfs {

struct MemoryBound {
  std::string of;          // for people: "the machine", "the memory cgroup /a/b"
  uint64_t total = 0;      // that there is, used or not
  uint64_t available = 0;  // that can be taken without anything being killed
};

// The machine's first, then those of the cgroups that have a limit, the nearest first. `root`: where /proc and /sys
// are; without it, the process's cgroups are those of the first call, and only what they have is read again.
std::vector<MemoryBound> MemoryBounds(const std::string& root = "");
// The one of which least is available. Where there is none: all the bytes that there can be.
MemoryBound TightestMemory(const std::vector<MemoryBound>& bounds);

}  // namespace termfs
