// SPDX-License-Identifier: Apache-2.0
//
// KnownNames: directories that this mount has made and of which it knows all names since, so that it can say itself
// that a name is not there. That saves the look-up which a kernel makes before each create.
//
// It rests on the grant of the directory's attributes: who changes a name in it from elsewhere recalls those, and waits
// for the answer. So as long as the grant lasts and nothing was recalled, the names are those that this mount has put
// there, or has tried to. Names that are taken away stay: about one that may be there the server is asked.
//
// Thread-safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/clock.h"
#include "base/mutex.h"

namespace termfs::fs::client {

class KnownNames {
 public:
  // The directory is new and empty, and its attributes are granted until `end`. Look afterwards whether anything was
  // recalled since that was asked for, and if so, Forget it.
  void Made(uint64_t directory, BootTime end) EXCLUDES(mutex_);
  // They are granted anew until `end`. A grant that has ended by now is not renewed.
  void Renewed(uint64_t directory, BootTime end) EXCLUDES(mutex_);
  // Before the request that may put the name there.
  void WillAdd(uint64_t directory, std::string_view name) EXCLUDES(mutex_);
  // The name is in no case there. Said once for each name: where it is looked up again, the kernel had better keep the
  // answer, and only the server can grant that.
  bool Lacks(uint64_t directory, std::string_view name) EXCLUDES(mutex_);
  // Before a recall of its attributes is answered.
  void Forget(uint64_t directory) EXCLUDES(mutex_);
  void ForgetAll() EXCLUDES(mutex_);

 private:
  static constexpr size_t kMostDirectories = 4096;
  static constexpr size_t kMostNames = size_t{1} << 17;  // of all of them: some 5 MiB
  struct Directory {
    BootTime end;
    std::unordered_set<size_t> names;  // by their hashes: of two with the same one, either may be there
  };
  using Directories = std::unordered_map<uint64_t, Directory>;
  // False: it was there. If there are too many, the directory is forgotten.
  bool Add(Directories::iterator directory, std::string_view name) REQUIRES(mutex_);
  void Erase(Directories::iterator directory) REQUIRES(mutex_);
  void EraseEnded(BootTime now) REQUIRES(mutex_);

  Mutex mutex_;
  Directories directories_ GUARDED_BY(mutex_);
  size_t names_ GUARDED_BY(mutex_) = 0;
};

}  // namespace termfs::fs::client
