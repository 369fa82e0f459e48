// SPDX-License-Identifier: Apache-2.0
//
// TempFolder: an empty folder on a file system that supports O_DIRECT (the working directory's), removed with it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/check.h"

namespace termfs {

class TempFolder {
 public:
  TempFolder() {
    std::string name = std::filesystem::current_path() / "termfs-test-XXXXXX";
    TERMFS_CHECK(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace termfs
