// SPDX-License-Identifier: Apache-2.0
//
// Memory: what a process holds, by what it is for. From /proc/PID/smaps.
//
// Thread-safety: free functions. Units: bytes. Errors: end the benchmark.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace termfs::benchmarks::grow {

struct Memory {
  uint64_t page_table = 0;     // the RNIC's; of a client: what it has mapped of it
  uint64_t page_states = 0;    // a server's
  uint64_t bitmap = 0;         // the live one
  uint64_t frames = 0;         // no bookkeeping
  uint64_t anonymous = 0;      // heats, owners, written log, pulled bitmap; and the process's own
  uint64_t other = 0;          // code, files
  uint64_t kernel_tables = 0;  // the kernel's page tables for all that

  uint64_t bookkeeping() const { return page_table + page_states + bitmap + anonymous + kernel_tables; }
};

Memory MemoryOf(pid_t pid);

}  // namespace termfs::benchmarks::grow
