// SPDX-License-Identifier: Apache-2.0
//
// What the namespace speaks of: inodes, directory entries, extents.
//
// Thread-safety: values. Units: times are nanoseconds since the epoch; blocks and extents count pages of 4 KiB.
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/page.h"

namespace termfs::metadata {

// Never used twice in the life of a volume.
using InodeNumber = uint64_t;
inline constexpr InodeNumber kRootInode = 1;

using Uuid = std::array<uint8_t, 16>;

inline constexpr size_t kMaxName = 255;                            // bytes, of a directory entry or of an attribute
inline constexpr size_t kMaxSymlink = 4095;                        // bytes
inline constexpr size_t kMaxXattrValue = 64 << 10;                 // bytes
inline constexpr size_t kMaxXattrList = 64 << 10;                  // bytes: all names of an inode, each with its NUL
inline constexpr uint32_t kMaxLinks = 65000;                       // of a file that is no directory
inline constexpr uint64_t kMaxFileSize = (uint64_t{1} << 60) - 1;  // bytes
inline constexpr uint64_t kMaxAllocation = uint64_t{1} << 15;      // pages, of one AllocateExtents

// The values of d_type, which are mode >> 12.
enum class FileType : uint8_t {
  kFifo = 1,
  kCharacter = 2,
  kDirectory = 4,
  kBlock = 6,
  kRegular = 8,
  kSymlink = 10,
  kSocket = 12,
};

inline constexpr FileType TypeOfMode(uint32_t mode) { return static_cast<FileType>((mode & S_IFMT) >> 12); }

// There are no extended attributes; false: that is not known. It is no attribute, so whatever it says, two are equal.
struct NoXattrs {
  bool known = false;
  friend bool operator==(NoXattrs, NoXattrs) { return true; }
};

// Bytes that a truncation has cut off within a page, and that may still be on the SSD: see Namespace::Truncate.
struct TailCut {
  uint64_t from = 0;  // byte of the file, inside a page; 0: there is none
  uint64_t id = 0;    // of the truncation, among those of the file
  explicit operator bool() const { return from != 0; }
  uint64_t page() const { return from / kPageSize; }
  friend bool operator==(const TailCut&, const TailCut&) = default;
};

struct Attributes {
  InodeNumber ino = 0;
  uint64_t generation = 0;  // of the inode number; constant as long as numbers are not reused
  uint32_t mode = 0;        // type and permission bits
  uint32_t nlink = 0;       // 0: unlinked, kept as an orphan
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint64_t rdev = 0;
  uint64_t size = 0;    // bytes; of a directory: how many entries it has
  uint64_t blocks = 0;  // pages allocated, those ahead of growth included
  // Of a regular file, in file pages: all from the end of the file up to here is space allocated ahead of its growth.
  // 0, or not beyond the end: there is none.
  uint64_t ahead_end = 0;
  TailCut cut{};
  Nanoseconds atime{0};
  Nanoseconds mtime{0};
  Nanoseconds ctime{0};
  Nanoseconds btime{0};
  NoXattrs no_xattrs{};

  FileType type() const { return TypeOfMode(mode); }
  bool is_directory() const { return type() == FileType::kDirectory; }
  // What was allocated for what was written or asked for.
  uint64_t BlocksInUse() const {
    const uint64_t ahead = ahead_end - std::min(ahead_end, RoundUpToPage(size) >> kPageBits);
    return blocks - std::min(blocks, ahead);
  }
  // The inode has changed, at `now`. Changes may commit in another order than they looked at the clock; no time goes
  // back by that.
  void Changed(Nanoseconds now) { ctime = std::max(ctime, now); }
  // And with it the data, or the entries. An mtime beyond ctime is somebody's wish, and ends here.
  void Modified(Nanoseconds now) {
    mtime = std::max(std::min(mtime, ctime), now);
    Changed(now);
  }
  // The contents of a file have changed. Two of these never leave the same times, also where the clock was set back.
  void Rewritten(Nanoseconds now) {
    const Nanoseconds next = ctime + Nanoseconds(1);
    mtime = std::max(std::min(mtime, ctime) + Nanoseconds(1), now);
    Changed(std::max(next, now));
  }
  friend bool operator==(const Attributes&, const Attributes&) = default;
};

// Who asks: the owner of new inodes. Permission checks are the kernel's.
struct Caller {
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint32_t umask = 0;  // counts where the directory has no default access control list
};

// What SetAttr changes. `mode` gives the 12 permission bits; its type bits are ignored.
struct AttributeChange {
  std::optional<uint32_t> mode;
  std::optional<uint32_t> uid;
  std::optional<uint32_t> gid;
  std::optional<Nanoseconds> atime;
  std::optional<Nanoseconds> mtime;
};

// A new inode. `mode` has type bits and permission bits (umask applied by the caller; 0 type bits mean regular).
struct NewInode {
  uint32_t mode = S_IFREG;
  uint64_t rdev = 0;           // of a character or block device
  std::string symlink_target;  // of a symlink, 1 to kMaxSymlink bytes
  InodeNumber ino = 0;         // from Namespace::NextInode; 0: any
};

struct DirectoryEntry {
  std::string name;
  InodeNumber ino = 0;
  FileType type = FileType::kRegular;
  uint64_t cursor = 0;  // reading goes on after this entry from here
};

struct DirectoryEntryPlus {
  DirectoryEntry entry;
  Attributes attributes;
};

// Whether an inode that is about to lose its last name may be open. Asked inside the transaction, in each of its
// attempts; the answer has to hold until the transaction has ended.
using MayBeOpen = std::function<bool(InodeNumber)>;

// A quota tree: a directory and what was made below it. Named by the directory's number; 0: none.
using ProjectNumber = InodeNumber;

// The inode behind a name that was removed or replaced.
struct Removed {
  InodeNumber ino = 0;  // 0: no inode lost a name
  FileType type = FileType::kRegular;
  bool last_link = false;
  bool freed_pages = false;  // some or all that it had are pending-free
  // The inode stays as an orphan: ReleaseOrphan it when nobody has it open (at once, if so now).
  bool orphaned = false;
  uint64_t pages = 0;         // that such an orphan has
  ProjectNumber project = 0;  // the quota tree that it counts to, 0: none
};

struct Renamed {
  InodeNumber ino = 0;  // what moved; 0 when both names were links of one inode and nothing was done
  Removed replaced;
  InodeNumber exchanged = 0;  // what moved the other way
};

struct Extent {
  uint64_t file_page = 0;  // first page in the file
  uint64_t pages = 0;
  uint32_t server = 0;  // region server
  PageIndex region_page;
  bool fresh = false;  // AllocateExtents gave it just now (its pages are zero pages)
  friend bool operator==(const Extent&, const Extent&) = default;
};

// A client of the volume: random, its own in all its sessions, not 0.
using ClientNumber = uint64_t;
inline constexpr uint32_t kMaxSlots = 1024;  // of a client

// By what a change is known again when it is asked for a second time. Of one slot sequences rise from 1.
struct Stamp {
  ClientNumber client = 0;
  uint32_t slot = 0;  // below kMaxSlots
  uint64_t sequence = 0;
};

// What was done for the stamp with this sequence; and what the slot did to the number of inodes (see keys.h).
struct Receipt {
  uint64_t sequence = 0;
  InodeNumber ino = 0;  // that was made, if one was
  uint64_t offset = 0;  // where appended bytes went
  bool partly = false;  // the size is set, the attributes that were to be set with it are not
  int64_t inodes = 0;   // that the slot's changes made, less those that they removed; all since its first
  friend bool operator==(const Receipt&, const Receipt&) = default;
};

// 0: no limit. Bytes are those of allocated pages.
struct QuotaLimits {
  uint64_t bytes = 0;
  uint64_t inodes = 0;
  friend bool operator==(const QuotaLimits&, const QuotaLimits&) = default;
};

struct Quota {
  ProjectNumber project = 0;
  QuotaLimits limits{};
  uint64_t pages = 0;     // in use
  uint64_t inodes = 0;    // in use, the directory and orphans included
  bool counting = false;  // what was there before the quota is not all counted
  friend bool operator==(const Quota&, const Quota&) = default;
};

struct QuotaTree {
  Quota quota;
  // Of its directory, from the volume's root on: "/home/ann"; empty: it has been removed. Without a "/" in front: a
  // remark, as the store is damaged.
  std::string path;
};

struct ClientRecord {
  ClientNumber client = 0;
  uint32_t reconnect_seconds = 0;  // for so long it tries to come back
  uint32_t pid = 0;                // of its process on this host, 0: not known
  uint64_t started = 0;            // when that was started, in clock ticks since the host was
  bool caches = false;             // its kernel was granted something, or may have been
  bool expelled = false;           // what it had was not kept for it
  friend bool operator==(const ClientRecord&, const ClientRecord&) = default;
};

struct RegionRange {
  uint32_t server = 0;
  PageIndex first;
  uint64_t pages = 0;
  friend bool operator==(const RegionRange&, const RegionRange&) = default;
};

struct SpaceUse {
  uint64_t total_pages = 0;
  uint64_t free_pages = 0;     // allocatable
  uint64_t pending_pages = 0;  // freed, waiting for CommitFree
  uint64_t inodes = 0;         // in use, the root and orphans included
  friend bool operator==(const SpaceUse&, const SpaceUse&) = default;
};

}  // namespace termfs::metadata
