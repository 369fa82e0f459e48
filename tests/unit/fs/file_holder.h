// SPDX-License-Identifier: Apache-2.0
//
// A process of its own with a client that holds files open, to be stopped or killed.
#pragma once

#include <sys/types.h>

#include "tests/unit/fs/real_volume.h"

namespace termfs::fs {

// Two files of 1 MiB of 'x', "kept" and "doomed", which the process made, has open and has maps of. Killed at the end.
class FileHolder {
 public:
  explicit FileHolder(const RealVolume& volume);  // returns when the process holds them
  ~FileHolder();
  FileHolder(const FileHolder&) = delete;
  FileHolder& operator=(const FileHolder&) = delete;

  void Strike(int signal);

 private:
  pid_t child_;
};

// What main() of a test program does first: the process of a FileHolder is the same program.
bool IsFileHolder(int argc, char** argv);
int HoldFiles(char** argv);  // returns only if it can't

}  // namespace termfs::fs
