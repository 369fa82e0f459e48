// SPDX-License-Identifier: Apache-2.0
#include "metadata/operation.h"

#include <bitset>

#include "metadata/keys.h"

namespace termfs::metadata {

namespace {
constexpr size_t kDentryKeyPrefix = 1 + 8 + 8;
constexpr size_t kMaxSameHash = size_t{1} << kIndexBits;

bool HasSpace(const InodeRecord& inode) { return inode.attributes.blocks != 0 || inode.trim_page != kNoTrim; }

Status Stale() { return Status::Error(ESTALE, "no such inode"); }
}  // namespace

Result<InodeRecord> ReadInode(Reader& reader, InodeNumber ino) {
  ASSIGN_OR_RETURN(const auto value, reader.Get(InodeKey(ino)));
  if (!value) {
    return Stale();
  }
  return DecodeInode(ino, *value);
}

Result<std::optional<Dentry>> ReadDentry(Reader& reader, InodeNumber dir, uint64_t hash, std::string_view name) {
  ASSIGN_OR_RETURN(const auto value, reader.Get(DentryKey(dir, hash, name)));
  if (!value) {
    return std::optional<Dentry>();
  }
  ASSIGN_OR_RETURN(const Dentry dentry, DecodeDentry(*value));
  return std::optional<Dentry>(dentry);
}

Status CheckName(std::string_view name) {
  if (name.empty()) {
    return Status::Error(ENOENT, "empty name");
  }
  if (name.size() > kMaxName) {
    return Status::Error(ENAMETOOLONG, "name longer than 255 bytes");
  }
  if (name == "." || name == ".." || name.find('/') != name.npos || name.find('\0') != name.npos) {
    return Status::Error(EINVAL, "not a name");
  }
  return Status::Ok();
}

Status AddToInodeCount(Transaction& transaction, uint8_t shard, int64_t delta) {
  const std::string key = InodeCountKey(shard);
  ASSIGN_OR_RETURN(const auto value, transaction.GetForUpdate(key));
  uint64_t count = 0;
  if (value) {
    ASSIGN_OR_RETURN(count, DecodeNumber(*value));
  }
  return transaction.Put(key, EncodeNumber(count + static_cast<uint64_t>(delta)));
}

std::optional<std::string_view> NameOfDentryKey(std::string_view key) {
  if (key.size() <= kDentryKeyPrefix) {
    return std::nullopt;
  }
  return key.substr(kDentryKeyPrefix);
}

Result<InodeRecord*> Operation::Claim(InodeNumber ino) {
  const auto it = inodes_.find(ino);
  if (it != inodes_.end()) {
    return it->second.removed ? Result<InodeRecord*>(Stale()) : &it->second.inode;
  }
  ASSIGN_OR_RETURN(auto value, transaction_.GetForUpdate(InodeKey(ino)));
  if (!value) {
    return Stale();
  }
  ASSIGN_OR_RETURN(InodeRecord inode, DecodeInode(ino, *value));
  const bool has_space = HasSpace(inode);
  Held held{.inode = {}, .stored = std::move(*value), .had_space = has_space};
  held.was_cut = static_cast<bool>(inode.attributes.cut);
  held.project = inode.project;
  held.blocks = inode.attributes.blocks;
  held.inode = std::move(inode);
  return &inodes_.emplace(ino, std::move(held)).first->second.inode;
}

Result<InodeRecord*> Operation::ClaimDirectory(InodeNumber ino) {
  ASSIGN_OR_RETURN(InodeRecord* const dir, Claim(ino));
  if (!dir->attributes.is_directory()) {
    return Status::Error(ENOTDIR, "not a directory");
  }
  if (dir->attributes.nlink == 0) {
    return Status::Error(ENOENT, "the directory was removed");
  }
  return dir;
}

InodeRecord* Operation::Insert(InodeRecord inode) {
  const InodeNumber ino = inode.attributes.ino;
  CountInode(ino, 1);
  return &inodes_.emplace(ino, Held{std::move(inode), {}}).first->second.inode;
}

Status Operation::Remove(InodeNumber ino) {
  inodes_.at(ino).removed = true;
  CountInode(ino, -1);
  return transaction_.Delete(InodeKey(ino));
}

void Operation::CountInode(InodeNumber ino, int64_t delta) {
  inode_delta_ += delta;
  inodes_to_store_ += delta;
  inode_shard_ = static_cast<uint8_t>(ino % kInodeCountShards);
}

Result<std::optional<Dentry>> Operation::FindDentry(const InodeRecord& dir, std::string_view name) {
  return ReadDentry(transaction_, dir.attributes.ino, hash_(name), name);
}

Status Operation::AddDentry(InodeRecord& dir, std::string_view name, Dentry dentry) {
  const InodeNumber parent = dir.attributes.ino;
  const uint64_t hash = hash_(name);
  const std::string key = DentryKey(parent, hash, name);
  ASSIGN_OR_RETURN(const auto same_hash,
                   transaction_.Scan(DentryKey(parent, hash, ""), DentryKey(parent, hash + 1, ""), kMaxSameHash));
  std::bitset<kMaxSameHash> used;
  for (const KeyValue& pair : same_hash) {
    if (pair.key == key) {
      return Status::Error(EEXIST, "the name exists");
    }
    ASSIGN_OR_RETURN(const Dentry other, DecodeDentry(pair.value));
    used.set(other.index);
  }
  if (used.all()) {
    return Status::Error(ENOSPC, "too many names of the directory have the same hash");
  }
  size_t index = 0;
  while (used[index]) {
    ++index;
  }
  dentry.index = static_cast<uint8_t>(index);
  ++dir.attributes.size;
  return transaction_.Put(key, EncodeDentry(dentry));
}

Status Operation::ReplaceDentry(const InodeRecord& dir, std::string_view name, const Dentry& dentry) {
  return transaction_.Put(DentryKey(dir.attributes.ino, hash_(name), name), EncodeDentry(dentry));
}

Status Operation::DeleteDentry(InodeRecord& dir, std::string_view name) {
  --dir.attributes.size;
  return transaction_.Delete(DentryKey(dir.attributes.ino, hash_(name), name));
}

Status Operation::Finish() {
  for (auto& [ino, held] : inodes_) {
    if (held.removed) {
      continue;
    }
    Attributes& a = held.inode.attributes;
    if (a.ahead_end <= RoundUpToPage(a.size) >> kPageBits || !HasSpace(held.inode)) {
      a.ahead_end = 0;
    }
    if (!HasSpace(held.inode)) {
      a.cut = {};
    }
    if (held.was_cut != static_cast<bool>(a.cut)) {
      RETURN_IF_ERROR(a.cut ? transaction_.Put(CutKey(ino), EncodeBytes("")) : transaction_.Delete(CutKey(ino)));
    }
    const std::string bytes = EncodeInode(held.inode);
    if (bytes != held.stored) {
      RETURN_IF_ERROR(transaction_.Put(InodeKey(ino), bytes));
    }
    if (held.had_space && !HasSpace(held.inode)) {
      RETURN_IF_ERROR(transaction_.Delete(AheadKey(ino)));
      RETURN_IF_ERROR(transaction_.Delete(TruncationKey(ino)));
    }
  }
  RETURN_IF_ERROR(space_.Flush());
  RETURN_IF_ERROR(WriteQuotas());
  // Last: all operations share the shards, and one that holds a shard waits for nothing any more.
  const int64_t delta = TakeInodeDelta();
  return delta == 0 ? Status::Ok() : AddToInodeCount(transaction_, inode_shard_, delta);
}

Status Operation::WriteQuotas() {
  std::map<ProjectNumber, Use> changes;  // in this order, so that two operations do not wait for each other
  for (const auto& [ino, held] : inodes_) {
    if (held.project != 0) {
      Use& change = changes[held.project];
      change.pages -= static_cast<int64_t>(held.blocks);
      --change.inodes;
    }
    if (held.inode.project != 0 && !held.removed) {
      Use& change = changes[held.inode.project];
      change.pages += static_cast<int64_t>(held.inode.attributes.blocks);
      ++change.inodes;
    }
  }
  for (const auto& [project, change] : changes) {
    if (change.pages != 0 || change.inodes != 0) {
      RETURN_IF_ERROR(WriteQuota(project, change));
    }
  }
  return Status::Ok();
}

Status Operation::WriteQuota(ProjectNumber project, const Use& change) {
  const std::string key = QuotaKey(project);
  ASSIGN_OR_RETURN(const auto value, transaction_.GetForUpdate(key));
  if (!value) {
    return Status::Error(EIO, "the record of a quota is missing: run termfs fsck");
  }
  ASSIGN_OR_RETURN(Quota quota, DecodeQuota(project, *value));
  quota.pages += static_cast<uint64_t>(change.pages);
  quota.inodes += static_cast<uint64_t>(change.inodes);
  if (quota.inodes == 0) {
    return transaction_.Delete(key);
  }
  const QuotaLimits& limits = quota.limits;
  if (limited_ && ((change.pages > 0 && limits.bytes != 0 && quota.pages > limits.bytes >> kPageBits) ||
                   (change.inodes > 0 && limits.inodes != 0 && quota.inodes > limits.inodes))) {
    return Status::Error(EDQUOT, "the quota of the directory tree is used up");
  }
  return transaction_.Put(key, EncodeQuota(quota));
}

void Operation::Publish() {
  space_.Publish();
  if (inode_delta_ != 0) {
    allocator_.AddInodes(inode_delta_);
  }
}

}  // namespace termfs::metadata
