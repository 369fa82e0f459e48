// SPDX-License-Identifier: Apache-2.0
//
// Namespace: the tree of inodes and names, the map from file pages to region pages, and the region's free space, over
// a KeyValueStore. Every operation is one transaction, except where it says *steps*: then the first transaction makes
// the change visible and the rest free space, each leaving a state that Check finds sound and from which they go on.
//
// Invariants, between any two transactions:
//   1. Every dentry names an inode; an inode that is no orphan is named by exactly nlink dentries (a directory: by one,
//      and nlink is 2 plus its subdirectories). An orphan has nlink 0 and an orphan key.
//   2. A region page is free (bit clear), in one extent, or in one pending-free range (bit set); never in two.
//   3. Attributes.blocks is the number of pages in the inode's extents.
//   4. A quota's pages and inodes are the sums over the inodes that count to it. While it is not `counting`, these are
//      all below its directory, but for what counts to another quota, and what was removed and is kept as an orphan.
//      It ends with the last of them.
//
// Freed space takes this way: Unlink, Truncate, ... put it into pending-free ranges, durable and not allocatable.
// The caller takes some (ListPendingFree), waits until no I/O and no client can name them, makes them durable zero
// pages, and calls CommitFree. So a free page is always a zero page.
//
// Open files: an inode goes away with its last name unless MayBeOpen says otherwise, or it holds much. Removed then
// says `orphaned`, and the caller calls ReleaseOrphan when it sees no opener left. At start-up ReleaseOrphan all of
// ListOrphans and finish all of ListTruncations. The inode number of an orphan stays valid until then.
//
// Marked requests: an operation that takes a Stamp leaves its Receipt in the same transaction, so that whoever asks
// again with the same stamp (FindReceipt) learns that it has been done. ECANCELED: a later stamp of the slot was there
// first.
//
// Thread-safety: every method from any number of threads. They block for the store; call them on threads of their own.
// Ownership:     the store is borrowed and must outlive the Namespace; it has one Namespace at a time.
// Errors:        ESTALE: an inode number that does not exist. ENOENT, ENOTDIR, ...: as in POSIX, listed where not
//                obvious. EBUSY: conflicts went on too long. EIO: the store failed, or holds what no Namespace wrote
//                (run Check). After an error nothing has changed, except in steps already committed.
// Names:         1 to 255 bytes, neither '/' nor NUL, not "." or "..": else EINVAL; longer ENAMETOOLONG; empty ENOENT.
// Durability:    what returned survives a crash of the process; after Sync also power loss.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "metadata/key_value_store.h"
#include "metadata/name_hash.h"
#include "metadata/types.h"

namespace termfs::metadata {

class Allocator;
class Operation;

struct FormatOptions {
  Uuid uuid{};
  uint64_t capacity_pages = 0;  // of the region; at least 1
  uint32_t region_server = 0;   // the server whose region it is
  Nanoseconds now{0};
  uint32_t root_mode = 0755;
  Caller root_owner;
  // Bits of a name's hash that order a directory, 1 to 55. Fewer than 55 is for tests of collisions.
  uint32_t name_hash_bits = 55;
};

// The number of inodes is partly in receipts. Recover brings it to volumes that were made before.
inline constexpr uint64_t kInodesInReceipts = 1;
// Inodes name the quota tree that they count to. The first quota brings it to a volume.
inline constexpr uint64_t kQuotas = 2;
// Allocation groups may say where taken and free change. Recover brings it, too.
inline constexpr uint64_t kShortGroups = 4;
// Inodes may be cut within a page. Recover brings it, too.
inline constexpr uint64_t kCuts = 8;
inline constexpr uint64_t kKnownIncompatible = kInodesInReceipts | kQuotas | kShortGroups | kCuts;

struct Superblock {
  uint32_t format_version = 0;
  Uuid uuid{};
  // Features that a program which does not know them may ignore, must not write under, must not open.
  uint64_t compatible = 0;
  uint64_t read_only_compatible = 0;
  uint64_t incompatible = 0;  // kKnownIncompatible
  uint64_t capacity_pages = 0;
  uint32_t region_server = 0;
  uint32_t name_hash_bits = 0;
  Nanoseconds created{0};
};

enum class RenameMode { kReplace, kNoReplace, kExchange };
enum class XattrMode { kEither, kCreate, kReplace, kBoth };  // kBoth: always an error, of the one or the other
enum class SizeRule { kIfLarger, kExact };

class Namespace {
 public:
  // Makes an empty volume. EEXIST when the store holds one, EINVAL for bad options.
  static Status Format(KeyValueStore& store, const FormatOptions& options);
  // ENOENT: no volume in the store. EPROTONOSUPPORT: of a version or with features that this program does not know.
  static Result<std::unique_ptr<Namespace>> Open(KeyValueStore& store);
  ~Namespace();
  Namespace(const Namespace&) = delete;
  Namespace& operator=(const Namespace&) = delete;

  Superblock superblock() const EXCLUDES(superblock_mutex_);

  // --- Names (lookup.cc, create.cc, unlink.cc, rename.cc) ---

  // "." is the inode itself, whatever it is, ".." the directory that a directory is in. ESTALE: removed. A kernel that
  // has forgotten an inode asks so for what a file handle names.
  Result<Attributes> Lookup(InodeNumber parent, std::string_view name);
  // The same by what is in memory, without waiting for anything: EAGAIN when that does not tell.
  Result<Attributes> LookupInMemory(InodeNumber parent, std::string_view name);
  Result<Attributes> Create(InodeNumber parent, std::string_view name, const NewInode& inode, Caller caller,
                            Nanoseconds now, const Stamp* stamp = nullptr);
  // A regular file without a name, as if it had been made in `parent`: an orphan from the start. `nameable`:
  // LinkUnnamed gives it a name.
  Result<Attributes> CreateUnnamed(InodeNumber parent, const NewInode& inode, Caller caller, Nanoseconds now,
                                   bool nameable);
  // For who has to know the number before anybody else can. What is not used is lost. One in some thousands of calls
  // waits for the disk: not within a transaction.
  Result<InodeNumber> NextInode() EXCLUDES(inode_mutex_, reserve_mutex_);
  Result<std::string> Readlink(InodeNumber ino);
  // EPERM for a directory, EMLINK beyond kMaxLinks, ENOENT when the inode is an orphan.
  Result<Attributes> Link(InodeNumber ino, InodeNumber parent, std::string_view name, Nanoseconds now,
                          const Stamp* stamp = nullptr);
  // The same, also for what CreateUnnamed has made nameable and ReleaseOrphan has not begun to remove.
  Result<Attributes> LinkUnnamed(InodeNumber ino, InodeNumber parent, std::string_view name, Nanoseconds now,
                                 const Stamp* stamp = nullptr);
  Result<Removed> Unlink(InodeNumber parent, std::string_view name, const MayBeOpen& open, Nanoseconds now,
                         const Stamp* stamp = nullptr);
  Result<Removed> Rmdir(InodeNumber parent, std::string_view name, const MayBeOpen& open, Nanoseconds now,
                        const Stamp* stamp = nullptr);
  // `whiteout`: the old name stays, as that of a new whiteout with this owner: a character device 0/0 without
  // permissions, by which an upper layer of overlayfs says that there is nothing. Not with kExchange: EINVAL.
  Result<Renamed> Rename(InodeNumber old_parent, std::string_view old_name, InodeNumber new_parent,
                         std::string_view new_name, RenameMode mode, const MayBeOpen& open, Nanoseconds now,
                         const Stamp* stamp = nullptr, const Caller* whiteout = nullptr);

  // --- Directories (readdir.cc) ---

  // Up to `limit` (at least 1) entries after `cursor`, 0 for the start; empty means the end. Without "." and "..";
  // cursors 1 and 2 are never given out, for a caller that puts those two in front (both read on from the start).
  // A cursor stays good for ever: an entry that exists throughout is seen exactly once. Cursors are below 2^63.
  Result<std::vector<DirectoryEntry>> ReadDir(InodeNumber dir, uint64_t cursor, size_t limit);
  Result<std::vector<DirectoryEntryPlus>> ReadDirPlus(InodeNumber dir, uint64_t cursor, size_t limit);
  // What ".." names; the root's is the root, that of a removed directory is ESTALE.
  Result<InodeNumber> Parent(InodeNumber dir);

  // --- Attributes (attributes.cc, xattr.cc) ---

  Result<Attributes> GetAttr(InodeNumber ino);
  Result<Attributes> GetAttrInMemory(InodeNumber ino);  // as LookupInMemory
  // Sets what `change` names, and ctime. The size: Truncate. Here and below: `now` does not set ctime back, nor mtime,
  // unless that was set to what lay ahead.
  Result<Attributes> SetAttr(InodeNumber ino, const AttributeChange& change, Nanoseconds now,
                             const Stamp* stamp = nullptr);
  // Nothing else; in the receipts of no client, since who asks for it twice does no harm.
  Status SetAccessTime(InodeNumber ino, Nanoseconds atime);
  // After a write: one small transaction. mtime is set to what is given, ctime not back. kExact refuses (EINVAL) to
  // shrink, which is Truncate's. `offset`: for the receipt.
  Result<Attributes> SetSizeAndTimes(InodeNumber ino, uint64_t size, SizeRule rule, Nanoseconds mtime,
                                     Nanoseconds ctime, const Stamp* stamp = nullptr, uint64_t offset = 0);

  // EEXIST with kCreate, ENODATA with kReplace; E2BIG: value too long; ERANGE: name empty or too long; ENOSPC: list.
  // An access control list changes the mode with it, and is not kept when that says all of it (see metadata/acl.h);
  // EINVAL: not one; EACCES: a default one, and no directory. `outside_group`: who sets it is not in the file's group.
  Status SetXattr(InodeNumber ino, std::string_view name, std::string_view value, XattrMode mode, Nanoseconds now,
                  const Stamp* stamp = nullptr, bool outside_group = false);
  // ENODATA: no such attribute.
  Result<std::string> GetXattr(InodeNumber ino, std::string_view name);
  Result<std::vector<std::string>> ListXattr(InodeNumber ino);
  Status RemoveXattr(InodeNumber ino, std::string_view name, Nanoseconds now, const Stamp* stamp = nullptr);

  // --- Data space (extents.cc, truncate.cc, space.cc) ---

  // Gives every hole in [file_page, file_page + count) space, near `goal` if there is one, else after the file's
  // preceding extent. Returns the extents of the whole range, ascending, cut to it, the new ones `fresh`. All or
  // nothing: ENOSPC. EINVAL: not a regular file, or count is 0 or above kMaxAllocation; EFBIG.
  // `ahead`: the last so many pages are for growth to come and nobody's wish: noted, so that TrimAhead finds them also
  // after a crash.
  Result<std::vector<Extent>> AllocateExtents(InodeNumber ino, uint64_t file_page, uint64_t count,
                                              std::optional<PageIndex> goal, Nanoseconds now, uint64_t ahead = 0);
  // Up to `limit` extents that overlap the range, ascending, cut to it. What is not covered is a hole.
  Result<std::vector<Extent>> GetExtents(InodeNumber ino, uint64_t file_page, uint64_t count, size_t limit);

  struct Truncated {
    Attributes attributes;
    bool more = false;  // extents past the end are left: call TruncateStep until it returns false
  };
  // Sets the size, up or down, with mtime and ctime; frees whole pages past the end, in steps. What is left to free is
  // no longer part of the file. `partly`: for the receipt.
  //
  // A size within a page leaves bytes behind it that are to be zeros before the file grows. When they are, the SSD may
  // still have the old ones; so the inode says in Attributes::cut from where on the page is not to be believed there,
  // until ForgetCut: after a loss of memory the caller zeroes it from there. EBUSY: there is a cut in an earlier page,
  // which is to be forgotten first.
  Result<Truncated> Truncate(InodeNumber ino, uint64_t new_size, Nanoseconds now, const Stamp* stamp = nullptr,
                             bool partly = false);
  // The page is on the SSD as the file shows it. Not this cut any more, or no such inode: nothing is done.
  Status ForgetCut(InodeNumber ino, const TailCut& cut);
  // Up to `limit` inodes after `after` that are cut.
  Result<std::vector<InodeNumber>> ListCuts(InodeNumber after, size_t limit);
  // Frees a bounded number of extents; false when nothing is left (also for an inode that is gone).
  Result<bool> TruncateStep(InodeNumber ino);
  // Makes the range a hole, in steps: true means call again with the same arguments.
  Result<bool> PunchExtents(InodeNumber ino, uint64_t file_page, uint64_t count, Nanoseconds now);
  // Frees what was allocated ahead and lies past the end still, in steps: true means call again. Nothing to do, or no
  // such inode: false.
  Result<bool> TrimAhead(InodeNumber ino);
  // What lies past the end now is there on purpose.
  Status ForgetAhead(InodeNumber ino);
  // Up to `limit` inodes after `after` that something was allocated ahead for.
  Result<std::vector<InodeNumber>> ListAhead(InodeNumber after, size_t limit);
  // Up to `limit` inodes after `after` whose truncation is unfinished.
  Result<std::vector<InodeNumber>> ListTruncations(InodeNumber after, size_t limit);

  // --- Orphans (orphan.cc) ---

  // Removes the inode with all it holds, in steps. ESTALE: gone already; EINVAL: not an orphan, or not
  // any more.
  Status ReleaseOrphan(InodeNumber ino);
  // Up to `limit` orphans after `after` (0: from the start).
  Result<std::vector<InodeNumber>> ListOrphans(InodeNumber after, size_t limit);

  // --- Clients and receipts (clients.cc) ---

  // Notes that the client has a session; a record that is there is replaced.
  Status AddClient(const ClientRecord& client);
  // Forgets the client and its receipts; not being there is no error.
  Status RemoveClient(ClientNumber client);
  Result<std::vector<ClientRecord>> ListClients();
  // The receipt that the stamp's slot has; nothing when it is of another sequence.
  Result<std::optional<Receipt>> FindReceipt(const Stamp& stamp);

  // --- Free space (space.cc) ---

  // Up to `limit` pending-free ranges that begin at `from` or after it, ascending.
  Result<std::vector<RegionRange>> ListPendingFree(PageIndex from, size_t limit);
  // Makes ranges that ListPendingFree returned allocatable; EINVAL, and nothing done, if one is not such a range.
  Status CommitFree(std::span<const RegionRange> ranges);
  // Up to `limit` runs of free pages that begin at `from` or after it, ascending; empty: there are no more.
  Result<std::vector<RegionRange>> ListFree(PageIndex from, size_t limit);
  SpaceUse StatFs() const;
  // The store's, see KeyValueStore.
  bool IsRoomy() { return store_.IsRoomy(); }
  // EINVAL when smaller than now.
  Status Grow(uint64_t new_capacity_pages);

  // --- Quotas of directory trees (quota.cc) ---
  //
  // What is made below a directory with a quota counts to it, until it is removed. EDQUOT: an operation would take more
  // than a limit allows. No name moves into a quota tree or out of it, and none in it is a link of what is outside, or
  // the other way: EXDEV.

  // Sets limits, each if given (0: none). The first time makes `dir` the root of a quota tree; true: what is below it
  // is to be counted, by CountStep. Until that has ended, a directory that is not yet counted does not move within the
  // tree (EXDEV). When it was cut short Recover goes on, or who sets limits again. A limit below what is in use only
  // ends growth. Without any limit a tree in which nothing is but its root stops being one. ENOTDIR; EINVAL: in, or
  // around, another one.
  Result<bool> BeginQuota(InodeNumber dir, std::optional<uint64_t> bytes, std::optional<uint64_t> inodes);
  // A count under way, from the top.
  struct QuotaCount {
    explicit QuotaCount(ProjectNumber of) : project(of), left{of} {}
    ProjectNumber project;
    std::vector<InodeNumber> left;  // directories; the last is being counted
    std::string from;               // where to go on in it; empty: at its begin
  };
  // Some hundred inodes. False: all of the tree is counted. After an error the same step may be tried again.
  Result<bool> CountStep(QuotaCount& count);
  // Both, to the end.
  Status SetQuota(InodeNumber dir, std::optional<uint64_t> bytes, std::optional<uint64_t> inodes);
  // Of the tree that the inode counts to, if it does to one.
  Result<std::optional<Quota>> FindQuota(InodeNumber ino);
  // All there are. Looks through the directories above them, entry by entry and each once, for their names.
  Result<std::vector<QuotaTree>> ListQuotas();

  // --- A smaller region (shrink.cc): Confine; move what ListBeyond finds; free what is pending; Shrink ---

  // Pages at or beyond `end` are not given to files any more. ENOSPC: more is in use than fits below; then as before.
  Status Confine(uint64_t end);
  void EndConfinement();
  // In use at or beyond the end of the confinement, what is pending included.
  uint64_t TakenBeyond() const;
  struct Placed {
    InodeNumber ino = 0;
    Extent extent;
  };
  struct Beyond {
    std::vector<Placed> extents;  // cut to what lies at or beyond the end
    std::string next;             // where to go on; empty: that was all
  };
  // Looks through up to `limit` extents, from the first when `from` is empty. What an unfinished truncation is about to
  // free is left out.
  Result<Beyond> ListBeyond(const std::string& from, size_t limit);
  // Takes pages to move an extent of `ino` to. They are pending-free, so after a crash, or when they are not used,
  // they are freed like any other; until MoveExtent nobody may free what is pending. ENOSPC.
  Result<std::vector<RegionRange>> Reserve(InodeNumber ino, uint64_t pages);
  // The pages of `from` are in `to` from now on, as many; where they were is pending-free. False, and nothing is done,
  // when the file has them there no more. REQUIRES: `to` is from Reserve, and holds the bytes, durably.
  Result<bool> MoveExtent(InodeNumber ino, const Extent& from, std::span<const RegionRange> to);
  // The region has so many pages. EBUSY: something at or beyond the end is in use. REQUIRES: confined to it.
  Status Shrink(uint64_t new_capacity_pages);

  // --- After a crash (recover.cc) ---

  struct Recovered {
    uint64_t orphans = 0;
    uint64_t truncations = 0;
    uint64_t trimmed = 0;  // files that had space allocated ahead
  };
  // Ends what a crash has cut short: with `orphans`, removes those (nobody has them open by now); ends truncations;
  // gives back what was allocated ahead. What is freed is pending. REQUIRES: nobody uses the namespace.
  Result<Recovered> Recover(bool orphans);

  // What returned before survives power loss.
  Status Sync() { return store_.SyncWal(); }

 private:
  Namespace(KeyValueStore& store, const Superblock& superblock);

  // Runs `body` in a transaction, again on conflicts, and publishes what it changed to the sums in memory.
  Status Run(const std::function<Status(Operation&)>& body);
  // The same for a change that may have a stamp: `receipt`, as `body` leaves it, is stored with it.
  Status Run(const Stamp* stamp, Receipt& receipt, const std::function<Status(Operation&)>& body);
  Result<Attributes> AddLink(InodeNumber ino, InodeNumber parent, std::string_view name, Nanoseconds now,
                             const Stamp* stamp, bool unnamed_too);
  Status NoteQuotas();
  Status EndCounts();
  Status CountTree(ProjectNumber project);
  Status EndCount(ProjectNumber project);
  Result<Attributes> LookupBy(Reader& reader, InodeNumber parent, std::string_view name) const;
  // One of a block that was reserved before.
  std::optional<InodeNumber> ReservedInode() EXCLUDES(inode_mutex_);

  KeyValueStore& store_;
  mutable Mutex superblock_mutex_;
  Superblock superblock_ GUARDED_BY(superblock_mutex_);
  const NameHash hash_;
  const std::unique_ptr<Allocator> allocator_;
  // Inode numbers are reserved in blocks, durably before the first one of a block is given out; what is left of one at
  // a restart is not used.
  Mutex reserve_mutex_;  // one reservation at a time, so that all who need it wait for one sync; before inode_mutex_
  Mutex inode_mutex_;
  InodeNumber next_inode_ GUARDED_BY(inode_mutex_) = 0;
  InodeNumber end_inode_ GUARDED_BY(inode_mutex_) = 0;
};

struct CheckReport {
  std::vector<std::string> problems;  // one line each, at most CheckOptions::max_problems
  uint64_t problem_count = 0;         // all of them
  uint64_t inodes = 0;
  uint64_t directories = 0;
  uint64_t dentries = 0;
  uint64_t extents = 0;
  uint64_t orphans = 0;
  uint64_t used_pages = 0;
  uint64_t pending_pages = 0;
};

struct CheckOptions {
  size_t max_problems = 1000;
};

// Reads all of the store, as of one instant, and reports whatever breaks the invariants above or cannot be decoded.
// Changes nothing. Errors: as Namespace::Open, and EIO; problems are not errors. Memory: about 200 bytes per inode.
Result<CheckReport> Check(KeyValueStore& store, const CheckOptions& options = {});

}  // namespace termfs::metadata
