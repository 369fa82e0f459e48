// SPDX-License-Identifier: Apache-2.0
//
// FileSet: files of known sizes in a tree of directories, some of which are there, and who uses them. What a thread has
// taken is its own to create or to delete; what it has borrowed, for reading and writing, nobody deletes.
//
//   absent --TakeAbsent--> (created) --Put--> present --TakePresent--> (deleted) --PutAbsent--> absent
//
// Thread-safety: any thread.
// Ownership:     what is below `root` is removed by whoever made it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/random.h"
#include "base/result.h"
#include "benchmarks/workloads/personality.h"

namespace termfs::benchmarks {

class FileSet {
 public:
  // `root` does not exist yet.
  FileSet(std::string root, const FileSetSpec& spec, uint64_t entries, Random& random);

  // Makes the directories, and the files that are there at the start.
  Status Prepare(const std::vector<char>& contents, Random& random) EXCLUDES(mutex_);

  // A file that is there, at random, borrowed; nothing when there is none.
  std::optional<uint32_t> Borrow(Random& random) EXCLUDES(mutex_);
  void GiveBack(uint32_t file) EXCLUDES(mutex_);

  std::optional<uint32_t> TakeAbsent() EXCLUDES(mutex_);
  // One that nobody has borrowed, at random.
  std::optional<uint32_t> TakePresent(Random& random) EXCLUDES(mutex_);
  // It is there now, and borrowed.
  void PutBorrowed(uint32_t file) EXCLUDES(mutex_);
  void PutAbsent(uint32_t file) EXCLUDES(mutex_);

  std::string PathOf(uint32_t file) const;
  uint64_t SizeOf(uint32_t file) const { return sizes_[file]; }

 private:
  std::string DirectoryOf(uint32_t file) const;
  void AddPresent(uint32_t file) REQUIRES(mutex_);
  void RemovePresent(uint32_t file) REQUIRES(mutex_);

  const std::string root_;
  const uint64_t width_;
  const uint64_t present_at_start_;
  std::vector<uint64_t> sizes_;  // bytes

  Mutex mutex_;
  std::vector<uint32_t> users_ GUARDED_BY(mutex_);
  std::vector<uint32_t> place_ GUARDED_BY(mutex_);  // of a file in present_
  std::vector<uint32_t> present_ GUARDED_BY(mutex_);
  std::vector<uint32_t> absent_ GUARDED_BY(mutex_);
};

}  // namespace termfs::benchmarks
