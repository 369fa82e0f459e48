// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/device_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "base/page.h"
#include "base/size.h"
#include "base/trusted_path.h"

namespace termfs::tlib::server {
namespace {

// Bytes. Reads of the file wait while the kernel allocates.
constexpr uint64_t kAllocationStep = uint64_t{32} << 20;

Result<uint64_t> BlockDeviceBytes(int fd, const std::string& path) {
  uint64_t bytes = 0;
  if (ioctl(fd, BLKGETSIZE64, &bytes) != 0) {
    return ErrnoStatus("ask for the size of " + path);
  }
  return bytes;
}

Status OpenFailed(const std::string& path) {
  return errno == EBUSY ? Status::Error(EBUSY, path + " is mounted, or used by another server or program")
                        : ErrnoStatus("open " + path);
}

Status CheckBlockDevice(const std::string& path, uint64_t bytes) {
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_EXCL | O_CLOEXEC));  // O_EXCL: refused while it is mounted
  if (!fd.valid()) {
    return OpenFailed(path);
  }
  ASSIGN_OR_RETURN(const uint64_t have, BlockDeviceBytes(fd.get(), path));
  if (have < bytes) {
    return Status::Error(
        ENOSPC, path + " has " + ReadableSize(have) + ", " + ReadableSize(bytes - have) + " less than is needed");
  }
  return Status::Ok();
}

// Said before it is tried: an allocation that fails half-way would fill the file system for everybody meanwhile.
Status CheckSpace(int fd, uint64_t bytes) {
  struct statvfs space {};
  if (fstatvfs(fd, &space) != 0) {
    return ErrnoStatus("ask for free space");
  }
  const uint64_t free = uint64_t{space.f_bavail} * space.f_frsize;
  if (free < bytes) {
    return Status::Error(ENOSPC, ReadableSize(bytes) + " are needed, " + ReadableSize(free) + " are free");
  }
  return Status::Ok();
}

Status Allocate(int fd, uint64_t from, uint64_t bytes, const std::function<void(uint64_t, uint64_t)>& progress) {
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t step = std::min(kAllocationStep, bytes - done);
    if (fallocate(fd, 0, static_cast<off_t>(from + done), static_cast<off_t>(step)) != 0) {
      if (errno == EINTR) {
        continue;
      }
      return ErrnoStatus("allocate " + ReadableSize(bytes));
    }
    done += step;
    if (progress) {
      progress(done, bytes);
    }
  }
  return fsync(fd) == 0 ? Status::Ok() : ErrnoStatus("sync the file");
}

Status SyncFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || fsync(fd.get()) != 0) {
    return ErrnoStatus("sync the folder " + folder);
  }
  return Status::Ok();
}

}  // namespace

Result<DeviceFile> OpenDeviceFile(const std::string& name, OpenMode mode, uint64_t start, DeviceUse use) {
  ASSIGN_OR_RETURN(const std::string path, TrustedFile(name));  // it may be a link to another disk
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) {
    return ErrnoStatus("open " + path);
  }
  const bool is_block = S_ISBLK(found.st_mode);
  if (!is_block && !S_ISREG(found.st_mode)) {
    return Status::Error(EINVAL, path + " is neither a file nor a block device");
  }
  const bool direct = mode == OpenMode::kDirect;
  DeviceFile file;
  const int access = use == DeviceUse::kChange ? O_RDWR : O_RDONLY;
  file.fd =
      UniqueFd(open(path.c_str(), access | O_NOFOLLOW | O_CLOEXEC | (direct ? O_DIRECT : 0) | (is_block ? O_EXCL : 0)));
  if (!file.fd.valid()) {
    if (errno == EINVAL && direct) {
      return Status::Error(EINVAL, path + ": its file system knows no direct I/O (O_DIRECT); choose another place");
    }
    return OpenFailed(path);
  }
  if (is_block) {
    ASSIGN_OR_RETURN(file.bytes, BlockDeviceBytes(file.fd.get(), path));
    unsigned int block = 0;
    if (ioctl(file.fd.get(), BLKPBSZGET, &block) == 0 && block > kPageSize) {
      return Status::Error(EINVAL, path + " has blocks larger than " + ReadableSize(kPageSize));
    }
  } else {
    file.bytes = static_cast<uint64_t>(found.st_size);
  }
  if (file.bytes < start) {
    return Status::Error(EUCLEAN, path + " is too short for the beginning of a region: " + ReadableSize(file.bytes) +
                                      "; restore it from a backup");
  }
  file.bytes -= start;
  file.start = start;
  file.alignment = direct ? kPageSize : 1;
  return file;
}

Status FillHoles(const DeviceFile& file) {
  struct stat found {};
  if (fstat(file.fd.get(), &found) != 0) {
    return ErrnoStatus("examine the device");
  }
  constexpr uint64_t kSector = 512;
  const auto bytes = static_cast<uint64_t>(found.st_size);
  const uint64_t allocated = static_cast<uint64_t>(found.st_blocks) * kSector;
  if (!S_ISREG(found.st_mode) || allocated >= bytes) {
    return Status::Ok();
  }
  RETURN_IF_ERROR(CheckSpace(file.fd.get(), bytes - allocated));
  return Allocate(file.fd.get(), 0, bytes, nullptr);
}

Result<uint64_t> ResizeDeviceFile(const DeviceFile& file, uint64_t old_bytes, uint64_t bytes) {
  const int fd = file.fd.get();
  struct stat found {};
  if (fstat(fd, &found) != 0) {
    return ErrnoStatus("examine the device");
  }
  if (S_ISBLK(found.st_mode)) {
    ASSIGN_OR_RETURN(const uint64_t have, BlockDeviceBytes(fd, "the device"));
    if (have < file.start + bytes) {
      return Status::Error(ENOSPC, "the block device has " + ReadableSize(have) + ", " +
                                       ReadableSize(file.start + bytes - have) + " less than is needed");
    }
    return have - file.start;
  }
  const auto old_end = static_cast<off_t>(file.start + old_bytes);
  if (bytes > old_bytes) {
    RETURN_IF_ERROR(CheckSpace(fd, bytes - old_bytes));
    if (Status made = Allocate(fd, file.start + old_bytes, bytes - old_bytes, nullptr); !made.ok()) {
      if (ftruncate(fd, old_end) != 0) {
        LOG_WARNING("the device's file stays longer than it needs to be: {}", strerror(errno));
      }
      return made;
    }
    return bytes;
  }
  if (ftruncate(fd, static_cast<off_t>(file.start + bytes)) != 0 || fsync(fd) != 0) {
    return ErrnoStatus("cut the device's file");
  }
  return bytes;
}

Status MakeDeviceFile(const std::string& path, uint64_t bytes,
                      const std::function<void(uint64_t, uint64_t)>& progress) {
  if (Status trusted = TrustedFile(path).status(); !trusted.ok() && trusted.code() != ENOENT) {
    return trusted;  // a link to nothing, or a directory that is not there, is for open
  }
  struct stat found {};
  if (stat(path.c_str(), &found) == 0 && S_ISBLK(found.st_mode)) {
    return CheckBlockDevice(path, bytes);
  }
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.valid()) {
    return errno == EEXIST ? Status::Error(EEXIST, path + ": name a block device, or a file that does not exist")
                           : ErrnoStatus("make " + path);
  }
  Status made = CheckSpace(fd.get(), bytes);
  if (made.ok()) {
    made = Allocate(fd.get(), 0, bytes, progress);
  }
  if (made.ok()) {
    made = SyncFolderOf(path);
  }
  if (!made.ok()) {
    unlink(path.c_str());
    return std::move(made).WithContext("make " + path);
  }
  return Status::Ok();
}

void UnmakeDeviceFile(const std::string& path) {
  struct stat found {};
  if (lstat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) && unlink(path.c_str()) != 0) {
    LOG_WARNING("{} stays behind: {}", path, strerror(errno));
  }
}

}  // namespace termfs::tlib::server
