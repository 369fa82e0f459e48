// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/term/process_usage.h"

#include <time.h>

#include <fstream>
#include <string>

#include "benchmarks/must.h"

namespace termfs::benchmarks::term {

double ProcessorSecondsOf(pid_t process) {
  clockid_t clock{};
  timespec time{};
  if (clock_getcpuclockid(process, &clock) != 0 || clock_gettime(clock, &time) != 0) {
    Die(Status::Error(ECHILD, "process " + std::to_string(process) + " has ended"));
  }
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

DeviceBytes DeviceBytesOf(pid_t process) {
  std::ifstream io("/proc/" + std::to_string(process) + "/io");
  DeviceBytes bytes;
  int found = 0;
  std::string key;
  for (uint64_t value = 0; io >> key >> value;) {
    if (key == "read_bytes:") {
      bytes.read = value;
      found++;
    } else if (key == "write_bytes:") {
      bytes.written = value;
      found++;
    }
  }
  if (found != 2) {
    Die(Status::Error(ENOTSUP, "this kernel does not tell in /proc/PID/io what a process read and wrote"));
  }
  return bytes;
}

}  // namespace termfs::benchmarks::term
