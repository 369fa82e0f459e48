// SPDX-License-Identifier: Apache-2.0
//
// TierPlace: the directory on a tmpfs in which a region's frames, RNIC page table and page states outlive the server's
// process, but not the machine's restart. It belongs to one region, and to the server's user alone (mode 0700). It is
// locked while the object lives: a copy of a volume has its name.
//
// Thread-safety: one thread.
// Ownership:     the directory stays when the object goes; Remove takes it away.
// Errors:        EBUSY: somebody has it; EINVAL: not on a tmpfs; ENOSPC: too small; EPERM, EACCES: may not be made. The
//                text says what to do.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace termfs::tlib::server {

class TierPlace {
 public:
  // Makes what is missing of `directory`, and enters it. With `own_tmpfs` a tmpfs that may hold `most_bytes` is mounted
  // there unless one is already, with `huge_pages` where the kernel has them; where that is not permitted the directory
  // must lie on one. `needed_bytes`, for advice: what will be allocated at once. What it made is gone when it fails.
  // One that a process has is left as it is. EPERM: another user could replace it.
  static Result<TierPlace> Open(const std::string& directory, bool own_tmpfs, bool huge_pages, uint64_t needed_bytes,
                                uint64_t most_bytes);

  // Whether a process that can be seen from here has entered `directory`.
  static bool InUse(const std::string& directory);

  const std::string& path() const { return path_; }
  std::string File(const char* name) const { return path_ + "/" + name; }
  // What its tmpfs has room for, and what of that the files in it have. A tmpfs without limit: UINT64_MAX.
  struct Room {
    uint64_t free_bytes = 0;
    uint64_t held_bytes = 0;
  };
  Result<Room> room() const;
  // A tmpfs of one's own may hold so much.
  Status RaiseLimitTo(uint64_t most_bytes) const;
  // A tmpfs of one's own may hold no more than that, unless it does now.
  void LimitTo(uint64_t most_bytes) const;
  // What Open made goes, as if it had failed; with what lies in it.
  void Leave();
  // Removes every file in it.
  Status Clear() const;
  // Clear, and the tmpfs if it is one of its own, and the directory.
  Status Remove() const;

 private:
  struct Made {
    bool parent = false;
    bool directory = false;
    bool tmpfs = false;
  };

  TierPlace(std::string path, bool huge_pages) : path_(std::move(path)), huge_pages_(huge_pages) {}
  Status Enter(bool own_tmpfs, uint64_t needed_bytes, uint64_t most_bytes);
  // Of what is there at the moment: the directory, or what is mounted on it.
  Result<UniqueFd> Lock() const;
  Status Make();
  std::string Parent() const { return path_.substr(0, path_.rfind('/')); }  // of all volumes of this host
  Status MountOwn(uint64_t most_bytes) const;
  Status CheckParent() const;
  Status CheckPrivate() const;
  // Whether something is mounted on it.
  bool IsMountPoint() const;

  std::string path_;
  bool huge_pages_;
  Made made_;
  UniqueFd lock_;
  UniqueFd lock_below_;  // if the tmpfs was mounted here: of the directory below it, for who comes at the same time
};

}  // namespace termfs::tlib::server
