// SPDX-License-Identifier: Apache-2.0
//
// What a process has used up since it started, by the kernel's accounts.
//
// Thread-safety: any thread. Errors: end the benchmark, also when there is no such process.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace termfs::benchmarks::term {

double ProcessorSecondsOf(pid_t process);

// What it had the block devices read and write.
struct DeviceBytes {
  uint64_t read = 0;
  uint64_t written = 0;
};
DeviceBytes DeviceBytesOf(pid_t process);

}  // namespace termfs::benchmarks::term
