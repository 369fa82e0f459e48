// SPDX-License-Identifier: Apache-2.0
//
// What is mounted where, as the kernel tells it. Asks no file system that is mounted.
//
// Thread-safety: any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace termfs::mount {

// One mount, wherever it is moved to. After its end the number may be another mount's, on another device.
struct MountNumber {
  uint64_t number = 0;
  dev_t device = 0;  // of the file system
  bool operator==(const MountNumber&) const = default;
};

struct MountEntry {
  MountNumber mount;
  uint64_t parent = 0;  // the number of the mount that it is mounted on
  std::string path;     // of now; another mount may cover it
  std::string type;
  std::string options;        // of the mount, as the kernel writes them: "rw,nosuid,relatime"
  std::string super_options;  // of the file system, on whichever mount of it

  // Either list has `option`, such as "ro".
  bool Has(std::string_view option) const;
};

// Of this process, or of another one.
Result<std::vector<MountEntry>> ReadMountTable(const std::string& process = "self");
// By a table in the form of /proc/PID/mountinfo.
std::vector<MountEntry> ParseMountTable(std::string_view table);

// What a program that uses the path gets to.
Result<MountNumber> MountAt(const std::string& path);

// A process in another mount name space that has a file system of that device, and where; none among those that this
// process may look at.
std::optional<std::pair<pid_t, std::string>> MountedInAnotherNamespace(dev_t device);

}  // namespace termfs::mount
