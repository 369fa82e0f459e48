// SPDX-License-Identifier: Apache-2.0
//
// What client, server and mount say to one another about files. Times are nanoseconds since the epoch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace termfs::fs {

inline constexpr uint64_t kRootInode = 1;
inline constexpr size_t kMaxName = 255;         // bytes
inline constexpr size_t kMaxXattr = 64U << 10;  // bytes of a value, and of a list of names

struct Attributes {
  uint64_t ino = 0;
  uint64_t generation = 0;
  uint32_t mode = 0;  // type and permission bits, as st_mode
  uint32_t nlink = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint32_t rdev = 0;
  uint64_t size = 0;    // bytes
  uint64_t blocks = 0;  // of 512 bytes, allocated
  int64_t atime = 0;
  int64_t mtime = 0;
  int64_t ctime = 0;
  int64_t btime = 0;
  bool no_xattrs = false;  // there are no extended attributes; false: that is not known
};

struct DirectoryEntry {
  std::string name;
  uint64_t ino = 0;
  uint32_t type = 0;      // the S_IFMT bits
  uint64_t cursor = 0;    // where to go on after this entry
  Attributes attributes;  // of readdirplus, else zeros
};

// The quota of a directory tree, as an extended attribute of each inode in it: fs/client/quota.h. ENODATA: none.
inline constexpr char kQuotaXattr[] = "system.termfs.quota";

struct FileSystemStatus {
  uint64_t capacity_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t inodes_used = 0;
  uint64_t inodes_free = 0;
};

// The mode without the bits that Linux clears when an ordinary user changes the contents: set-user-id, and set-group-id
// where the group may execute.
constexpr uint32_t WithoutPrivileges(uint32_t mode) {
  constexpr uint32_t kType = 0170000;
  constexpr uint32_t kRegular = 0100000;
  constexpr uint32_t kSetUid = 04000;
  constexpr uint32_t kSetGid = 02000;
  constexpr uint32_t kGroupExecutes = 00010;
  if ((mode & kType) != kRegular) {
    return mode;
  }
  return mode & ~(kSetUid | ((mode & kGroupExecutes) != 0 ? kSetGid : 0));
}
// The same by the rule for regular files, whatever it is; the permission bits.
constexpr uint32_t PermissionsWithoutPrivileges(uint32_t mode) {
  constexpr uint32_t kRegular = 0100000;
  constexpr uint32_t kPermissions = 07777;
  return WithoutPrivileges(kRegular | (mode & kPermissions)) & kPermissions;
}

}  // namespace termfs::fs
