// SPDX-License-Identifier: Apache-2.0
//
// MemoryLimit: a memory control group of our own with a limit, for what a server holds in the kernel's page cache.
// Version 1 and 2 of control groups. It stays when the object goes: Sweep.
//
// Errors: ENOTSUP: the kernel offers none here; those of the file system of control groups.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace termfs::benchmarks::term {

class MemoryLimit {
 public:
  static Result<MemoryLimit> Create(const std::string& name, uint64_t bytes);
  // Removes those whose names begin so. REQUIRES: no process is in them any more.
  static void Sweep(const std::string& prefix);

  // This process and those it starts from now on.
  Status Enter() const;

 private:
  explicit MemoryLimit(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace termfs::benchmarks::term
