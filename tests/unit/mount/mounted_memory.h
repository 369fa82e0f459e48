// SPDX-License-Identifier: Apache-2.0
//
// MemoryFileSystems on one volume, mounted on temporary directories by the real front end, in a process of its own: a
// process that uses a mount which it serves itself cannot be killed. It ends with the test's process.
//
// Thread-safety: none. REQUIRES: made before the test's process has threads.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "mount/mount_point.h"

namespace termfs::mount {

class MountedMemory {
 public:
  static bool Available();  // tests skip when there is no FUSE here

  explicit MountedMemory(int mounts, const std::string& options = "threads=2");
  ~MountedMemory();
  MountedMemory(const MountedMemory&) = delete;
  MountedMemory& operator=(const MountedMemory&) = delete;

  bool mounted() const { return mounted_; }
  const std::string& root(size_t which = 0) const { return roots_[which]; }
  std::string Path(const std::string& name, size_t which = 0) const { return roots_[which] + "/" + name; }
  // A counter of the first mount, from its description of itself.
  uint64_t Metric(const std::string& name) const;

  // Ends it as SIGTERM does; false unless it ended clean, with no file left open.
  bool Stop();
  // Somebody has unmounted it: it ends by itself. As Stop.
  bool WaitForEnd();

 private:
  std::vector<std::string> roots_;
  int child_ = -1;
  bool mounted_ = false;
};

}  // namespace termfs::mount
