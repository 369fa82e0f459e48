// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/tier_place.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/file_lock.h"
#include "base/log.h"
#include "base/trusted_path.h"

namespace termfs::tlib::server {
namespace {

constexpr unsigned long kMountFlags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
constexpr uint64_t kStatBlock = 512;  // bytes

std::string Mebibytes(uint64_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

std::string Advice(uint64_t bytes) {
  return "; run the server as root, or set memory-directory in termfs.toml to a directory on a tmpfs with " +
         Mebibytes(bytes) + " free (such as one in /dev/shm)";
}

Result<bool> IsOnTmpfs(const std::string& path) {
  struct statfs found {};
  if (statfs(path.c_str(), &found) != 0) {
    return ErrnoStatus("examine " + path);
  }
  return found.f_type == TMPFS_MAGIC;
}

// The names in a directory, "." and ".." left out.
Result<std::vector<std::string>> NamesIn(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(path.c_str()), closedir);
  if (!dir) {
    return ErrnoStatus("open " + path);
  }
  std::vector<std::string> names;
  while (const dirent* entry = readdir(dir.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") {
      names.push_back(name);
    }
  }
  return names;
}

}  // namespace

Result<TierPlace> TierPlace::Open(const std::string& directory, bool own_tmpfs, bool huge_pages, uint64_t needed_bytes,
                                  uint64_t most_bytes) {
  TierPlace place(directory, huge_pages);
  if (Status entered = place.Enter(own_tmpfs, needed_bytes, most_bytes); !entered.ok()) {
    place.Leave();
    return entered;
  }
  return place;
}

Status TierPlace::Enter(bool own_tmpfs, uint64_t needed_bytes, uint64_t most_bytes) {
  RETURN_IF_ERROR(CheckParent());
  if (Status there = Make(); !there.ok()) {
    return Status::Error(there.code(), there.ToString() + Advice(needed_bytes));
  }
  RETURN_IF_ERROR(CheckParent());
  ASSIGN_OR_RETURN(lock_, Lock());  // before the tmpfs changes, which may be somebody's
  Status mounted;
  if (own_tmpfs) {
    const bool there = IsMountPoint();
    mounted = MountOwn(most_bytes);
    if (mounted.ok() && !there) {
      made_.tmpfs = true;
      lock_below_ = std::move(lock_);
      ASSIGN_OR_RETURN(lock_, Lock());
    }
  }
  ASSIGN_OR_RETURN(const bool on_tmpfs, IsOnTmpfs(path_));
  if (!on_tmpfs && !mounted.ok()) {
    return Status::Error(mounted.code(), mounted.ToString() + Advice(needed_bytes));
  }
  if (!on_tmpfs) {
    return Status::Error(EINVAL, path_ + " is not on a tmpfs; memory-directory must name a directory on one with " +
                                     Mebibytes(needed_bytes) + " free (such as one in /dev/shm)");
  }
  return CheckPrivate();
}

bool TierPlace::InUse(const std::string& directory) {
  const UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  return fd.valid() && LockedBy(fd) > 0;
}

Result<UniqueFd> TierPlace::Lock() const {
  UniqueFd fd(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) {
    const Status opened = ErrnoStatus("open " + path_);
    RETURN_IF_ERROR(CheckPrivate());
    return opened;
  }
  ASSIGN_OR_RETURN(bool locked, LockWhenDead(fd, path_, [&fd] { return LockedBy(fd); }));
  if (locked) {
    // Whoever had it may have taken it away meanwhile, or mounted a tmpfs on it.
    struct stat held {};
    struct stat now {};
    locked = fstat(fd.get(), &held) == 0 && stat(path_.c_str(), &now) == 0 && held.st_dev == now.st_dev &&
             held.st_ino == now.st_ino;
    if (locked) {
      return fd;
    }
  }
  const pid_t pid = LockedBy(fd);
  return Status::Error(EBUSY, "the memory in " + path_ + " is in use" +
                                  (pid > 0 ? " by process " + std::to_string(pid) : "") +
                                  ": if this is a copy of a volume that is served, end that server first, or set " +
                                  "memory-directory in termfs.toml to another directory on a tmpfs");
}

Status TierPlace::Make() {
  const std::string parent = Parent();
  made_.parent = mkdir(parent.c_str(), 0755) == 0;
  if (!made_.parent && errno != EEXIST) {
    return ErrnoStatus("create " + parent);
  }
  made_.directory = mkdir(path_.c_str(), 0700) == 0;
  return made_.directory || errno == EEXIST ? Status::Ok() : ErrnoStatus("create " + path_);
}

// What somebody else uses by now stays.
void TierPlace::Leave() {
  const Made made = std::exchange(made_, {});
  if (made.tmpfs && umount2(path_.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) != 0) {
    LOG_WARNING("unmount {}: {}", path_, strerror(errno));
  }
  if (made.directory) {
    rmdir(path_.c_str());
  }
  if (made.parent) {
    rmdir(Parent().c_str());
  }
}

bool TierPlace::IsMountPoint() const {
  struct stat here {};
  struct stat above {};
  return stat(path_.c_str(), &here) == 0 && stat((path_ + "/..").c_str(), &above) == 0 && here.st_dev != above.st_dev;
}

Status TierPlace::MountOwn(uint64_t most_bytes) const {
  // The size is a limit, not a reservation: what is needed is allocated when it is.
  const std::string size = "size=" + std::to_string(most_bytes);
  const bool mounted = IsMountPoint();
  const auto attempt = [&](const std::string& options) {
    return mounted ? mount(nullptr, path_.c_str(), nullptr, MS_REMOUNT | kMountFlags, options.c_str())
                   : mount("termfs", path_.c_str(), "tmpfs", kMountFlags, ("mode=0700," + options).c_str());
  };
  // A random read touches a frame that is in no TLB: with huge pages that is rare. A kernel without them refuses. Of
  // frames that come and go one by one a huge page would hold what nobody has asked for.
  if (attempt(size + (huge_pages_ ? ",huge=within_size" : ",huge=never")) == 0 ||
      (errno == EINVAL && attempt(size) == 0)) {
    return Status::Ok();
  }
  return ErrnoStatus((mounted ? "resize the tmpfs at " : "mount a tmpfs for the DRAM tier at ") + path_);
}

// What is in a sticky directory, such as /dev/shm, is looked at itself, by CheckPrivate.
Status TierPlace::CheckParent() const {
  const Status there = TrustedDirectory(Parent(), LastDirectory::kSticky).status();
  return there.code() == ENOENT ? TrustedFile(Parent()).status() : there;
}

Status TierPlace::CheckPrivate() const {
  struct stat found {};
  if (lstat(path_.c_str(), &found) != 0) {
    return ErrnoStatus("examine " + path_);
  }
  if (!S_ISDIR(found.st_mode) || found.st_uid != geteuid() || (found.st_mode & 0077) != 0) {
    return Status::Error(EACCES,
                         path_ + " must be a directory of mode 0700 that belongs to the server's user; remove it");
  }
  return Status::Ok();
}

Status TierPlace::RaiseLimitTo(uint64_t most_bytes) const {
  return IsMountPoint() ? MountOwn(most_bytes) : Status::Ok();
}

void TierPlace::LimitTo(uint64_t most_bytes) const {
  if (!IsMountPoint()) {
    return;
  }
  if (const Status limited = MountOwn(most_bytes); !limited.ok()) {
    LOG_DEBUG("{} keeps its old limit: {}", path_, limited.ToString());  // which costs nothing
  }
}

Result<TierPlace::Room> TierPlace::room() const {
  struct statfs space {};
  if (statfs(path_.c_str(), &space) != 0) {
    return ErrnoStatus("examine " + path_);
  }
  ASSIGN_OR_RETURN(const auto names, NamesIn(path_));
  Room room;
  for (const std::string& name : names) {
    struct stat found {};
    if (lstat(File(name.c_str()).c_str(), &found) == 0) {
      room.held_bytes += static_cast<uint64_t>(found.st_blocks) * kStatBlock;
    }
  }
  const bool limited = space.f_blocks != 0;
  room.free_bytes = limited ? uint64_t{space.f_bavail} * static_cast<uint64_t>(space.f_bsize) : UINT64_MAX;
  return room;
}

Status TierPlace::Clear() const {
  ASSIGN_OR_RETURN(const auto names, NamesIn(path_));
  for (const std::string& name : names) {
    if (unlink(File(name.c_str()).c_str()) != 0 && errno != ENOENT) {
      return ErrnoStatus("remove " + File(name.c_str()));
    }
  }
  return Status::Ok();
}

Status TierPlace::Remove() const {
  RETURN_IF_ERROR(Clear());
  // Lazily: clients may still map what was in it.
  if (IsMountPoint() && umount2(path_.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) != 0) {
    return ErrnoStatus("unmount " + path_);
  }
  return rmdir(path_.c_str()) == 0 || errno == ENOENT ? Status::Ok() : ErrnoStatus("remove " + path_);
}

}  // namespace termfs::tlib::server
