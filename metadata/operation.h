// SPDX-License-Identifier: Apache-2.0
//
// Operation: one namespace operation's view of its transaction. It claims inodes, keeps them decoded while the
// operation changes them in place, and writes back those that changed; it knows dentries by name, and counts what the
// transaction does to the sums in memory.
//
// Thread-safety: none; lives on the stack of Namespace::Run.
// Ownership:     InodeRecord pointers stay valid as long as the Operation.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/result.h"
#include "metadata/allocator.h"
#include "metadata/key_value_store.h"
#include "metadata/name_hash.h"
#include "metadata/records.h"

namespace termfs::metadata {

inline constexpr uint8_t kInodeCountShards = 64;

// How many records (extents, xattrs) one transaction frees at most.
inline constexpr size_t kFreeStep = 512;

// ESTALE when there is no such inode.
Result<InodeRecord> ReadInode(Reader& reader, InodeNumber ino);
Result<std::optional<Dentry>> ReadDentry(Reader& reader, InodeNumber dir, uint64_t hash, std::string_view name);
// See "Names" in namespace.h.
Status CheckName(std::string_view name);
std::optional<std::string_view> NameOfDentryKey(std::string_view key);

class Operation {
 public:
  Operation(Transaction& transaction, Allocator& allocator, const NameHash& hash)
      : transaction_(transaction), allocator_(allocator), hash_(hash), space_(allocator, transaction) {}
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  Transaction& transaction() { return transaction_; }
  SpaceChange& space() { return space_; }

  // The inode, claimed; changes to it are written by Finish. ESTALE when it does not exist.
  Result<InodeRecord*> Claim(InodeNumber ino);
  // Claim, of a directory that takes entries: else ENOTDIR, or ENOENT when it was removed.
  Result<InodeRecord*> ClaimDirectory(InodeNumber ino);
  InodeRecord* Insert(InodeRecord inode);
  // Deletes the record. REQUIRES: claimed, and nothing else left of the inode.
  Status Remove(InodeNumber ino);

  // REQUIRES for all: `dir` is claimed. They keep dir's size (its number of entries), not its times.
  Result<std::optional<Dentry>> FindDentry(const InodeRecord& dir, std::string_view name);
  // Gives `dentry` an index. EEXIST when the name exists; ENOSPC when too many names share its hash.
  Status AddDentry(InodeRecord& dir, std::string_view name, Dentry dentry);
  Status ReplaceDentry(const InodeRecord& dir, std::string_view name, const Dentry& dentry);
  Status DeleteDentry(InodeRecord& dir, std::string_view name);

  // Writes what is still in memory. The last call before Commit.
  Status Finish();
  // After Commit.
  void Publish();

 private:
  struct Held {
    InodeRecord inode;
    std::string stored;  // empty: new
    bool removed = false;
  };

  Transaction& transaction_;
  Allocator& allocator_;
  const NameHash& hash_;
  SpaceChange space_;
  std::map<InodeNumber, Held> inodes_;
  std::map<uint8_t, int64_t> inode_counts_;
};

}  // namespace termfs::metadata
