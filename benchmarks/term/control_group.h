// SPDX-License-Identifier: Apache-2.0
//
// ControlGroup: control groups of our own, which limit what a server holds in the kernel's page cache, and how often it
// reads from the SSD. Version 1 of control groups, where each limit has a hierarchy of its own, and 2, where one group
// has them all. They stay when the object goes: Sweep.
//
// Errors: ENOTSUP: the kernel offers none here; those of the file system of control groups.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace termfs::benchmarks::term {

class ControlGroup {
 public:
  explicit ControlGroup(std::string name) : name_(std::move(name)) {}
  // Removes those whose names begin so. REQUIRES: no process is in them any more.
  static void Sweep(const std::string& prefix);

  Status LimitMemory(uint64_t bytes);
  // Of the block device that `directory` is on; 0: without limit again. Writes are not limited.
  Status LimitSsdReads(const std::string& directory, uint64_t per_second);

  // This process and those it starts from now on. Again after another limit was set.
  Status Enter() const;

 private:
  // Where the limits of `controller` ("memory", "io") are written: the group is made there.
  struct Place {
    std::string path;
    bool version1 = false;
  };
  Result<Place> Make(std::string_view controller);

  const std::string name_;
  std::vector<std::string> paths_;
};

}  // namespace termfs::benchmarks::term
