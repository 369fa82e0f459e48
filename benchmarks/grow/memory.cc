// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/grow/memory.h"

#include <fstream>
#include <sstream>
#include <string>

#include "benchmarks/must.h"

namespace termfs::benchmarks::grow {
namespace {

bool EndsWith(const std::string& name, const std::string& end) {
  return name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
}

// The software RNIC names its memfds; those that outlive a server are files of the tier.
uint64_t& PlaceFor(const std::string& name, Memory& memory) {
  if (EndsWith(name, "/page-table")) {
    return memory.page_table;
  }
  if (EndsWith(name, "/states")) {
    return memory.page_states;
  }
  if (EndsWith(name, "/frames")) {
    return memory.frames;
  }
  if (name.find("termfs-present-bitmap") != std::string::npos) {
    return memory.bitmap;
  }
  return name.empty() || name.front() == '[' ? memory.anonymous : memory.other;
}

uint64_t KernelTables(const std::string& process) {
  std::ifstream status(process + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmPTE:", 0) == 0) {
      return std::stoull(line.substr(6)) << 10;
    }
  }
  Die(Status::Error(ENOTSUP, "this kernel does not tell in /proc/PID/status how large a process's page tables are"));
}

}  // namespace

Memory MemoryOf(pid_t pid) {
  const std::string process = "/proc/" + std::to_string(pid);
  Memory memory;
  uint64_t* place = nullptr;
  std::ifstream maps(process + "/smaps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (first.find('-') != std::string::npos) {  // from-to permissions offset device inode name
      std::string skipped;
      std::string name;
      words >> skipped >> skipped >> skipped >> skipped;
      std::getline(words >> std::ws, name);
      if (const size_t deleted = name.find(" (deleted)"); deleted != std::string::npos) {
        name.resize(deleted);
      }
      place = &PlaceFor(name, memory);
    } else if (first == "Rss:" && place != nullptr) {
      uint64_t kib = 0;
      words >> kib;
      *place += kib << 10;
    }
  }
  if (place == nullptr) {
    Die(Status::Error(ENOTSUP, "this kernel has no " + process + "/smaps"));
  }
  memory.kernel_tables = KernelTables(process);
  return memory;
}

}  // namespace termfs::benchmarks::grow
