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
#include <utility>

#include "base/result.h"
#include "metadata/acl.h"
#include "metadata/allocator.h"
#include "metadata/key_value_store.h"
#include "metadata/name_hash.h"
#include "metadata/records.h"

namespace termfs::metadata {

inline constexpr uint8_t kInodeCountShards = 64;

class Operation;

// How many records (extents, xattrs) one transaction frees at most.
inline constexpr size_t kFreeStep = 512;

// ESTALE when there is no such inode.
Result<InodeRecord> ReadInode(Reader& reader, InodeNumber ino);
Result<std::optional<Dentry>> ReadDentry(Reader& reader, InodeNumber dir, uint64_t hash, std::string_view name);
// See "Names" in namespace.h.
Status CheckName(std::string_view name);
std::optional<std::string_view> NameOfDentryKey(std::string_view key);

// An inode's access control list of that attribute, if it has one; and sets it, or with null removes it.
// REQUIRES: claimed, or about to be inserted; Grows was asked before a list is added.
Result<std::optional<Acl>> ReadAcl(Operation& op, const InodeRecord& inode, std::string_view name);
Status WriteAcl(Operation& op, InodeRecord& inode, std::string_view name, const Acl* acl);

// The number of inodes is the sum of what is in shards and in the receipts of clients that may come back (which their
// changes write anyway).
Status AddToInodeCount(Transaction& transaction, uint8_t shard, int64_t delta);

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
  // Whether it had pages when it was claimed, or was being truncated. Else it has no keys that say so, either.
  bool HadSpace(InodeNumber ino) const { return inodes_.at(ino).had_space; }
  bool WasCut(InodeNumber ino) const { return inodes_.at(ino).was_cut; }

  // REQUIRES for all: `dir` is claimed. They keep dir's size (its number of entries), not its times.
  Result<std::optional<Dentry>> FindDentry(const InodeRecord& dir, std::string_view name);
  // Gives `dentry` an index. EEXIST when the name exists; ENOSPC when too many names share its hash.
  Status AddDentry(InodeRecord& dir, std::string_view name, Dentry dentry);
  Status ReplaceDentry(const InodeRecord& dir, std::string_view name, const Dentry& dentry);
  Status DeleteDentry(InodeRecord& dir, std::string_view name);

  // Inodes made less inodes removed. The caller stores them; else Finish does.
  int64_t TakeInodeDelta() { return std::exchange(inodes_to_store_, 0); }

  // What is only counted is not limited by quotas.
  void LiftQuotas() { limited_ = false; }

  // Writes what is still in memory. The last call before Commit.
  Status Finish();
  // After Commit.
  void Publish();

 private:
  struct Use {
    int64_t pages = 0;
    int64_t inodes = 0;
  };
  struct Held {
    InodeRecord inode;
    std::string stored;  // empty: new
    bool had_space = false;
    bool was_cut = false;
    bool removed = false;
    // As stored.
    ProjectNumber project = 0;
    uint64_t blocks = 0;
  };

  void CountInode(InodeNumber ino, int64_t delta);
  // What the operation does to quotas, as their records say it then. EDQUOT.
  Status WriteQuotas();
  Status WriteQuota(ProjectNumber project, const Use& change);

  Transaction& transaction_;
  Allocator& allocator_;
  const NameHash& hash_;
  SpaceChange space_;
  std::map<InodeNumber, Held> inodes_;
  int64_t inode_delta_ = 0;
  int64_t inodes_to_store_ = 0;
  uint8_t inode_shard_ = 0;  // they are stored there
  bool limited_ = true;
};

}  // namespace termfs::metadata
