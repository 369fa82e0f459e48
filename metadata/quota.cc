// SPDX-License-Identifier: Apache-2.0
//
// Quotas of directory trees: making one, and counting what is in it already. Operation::Finish keeps what is in use.
//
// A tree is counted from the top. A directory counts before its entries do; from then on what is made in it counts,
// too, and nothing comes into it that does not (KeepProject, AddLink). So one look at its entries finds all others.
#include <algorithm>
#include <unordered_map>

#include "metadata/content.h"
#include "metadata/keys.h"
#include "metadata/namespace.h"
#include "metadata/operation.h"
#include "metadata/records.h"

namespace termfs::metadata {

namespace {

constexpr size_t kCountStep = 256;  // inodes, of one transaction

Result<std::vector<Quota>> ReadQuotas(Reader& reader) {
  std::vector<Quota> quotas;
  RETURN_IF_ERROR(ForEach(reader, QuotaKey(0), EndOfType('U'), [&](const KeyValue& pair) -> Status {
    Decoder key(pair.key);
    key.U8();
    const ProjectNumber project = key.U64();
    if (!key.Finished()) {
      return Status::Error(EIO, "damaged key of a quota: run termfs fsck");
    }
    ASSIGN_OR_RETURN(quotas.emplace_back(), DecodeQuota(project, pair.value));
    return Status::Ok();
  }));
  return quotas;
}

// EINVAL when another quota tree is below `dir`. REQUIRES: MoveDirectoryKey is claimed.
Status CheckNoneBelow(Operation& op, InodeNumber dir) {
  constexpr int kMaxDepth = 1 << 20;
  ASSIGN_OR_RETURN(const std::vector<Quota> quotas, ReadQuotas(op.transaction()));
  for (const Quota& quota : quotas) {
    InodeNumber at = quota.project;
    for (int depth = 0; at != kRootInode && depth < kMaxDepth; ++depth) {
      const Result<InodeRecord> inode = ReadInode(op.transaction(), at);
      if (!inode.ok() && inode.status().code() == ESTALE) {
        break;  // removed, and open files are left of the tree
      }
      RETURN_IF_ERROR(inode.status());
      if (inode->attributes.nlink == 0) {
        break;
      }
      at = inode->parent;
      if (at == dir) {
        return Status::Error(EINVAL, "a directory below it has a quota; quota trees do not nest");
      }
    }
  }
  return Status::Ok();
}

// Paths of directories. Each directory above them is read once, however many of the paths lead through it.
class Paths {
 public:
  explicit Paths(Reader& reader) : reader_(reader) {}
  Paths(const Paths&) = delete;
  Paths& operator=(const Paths&) = delete;

  // Looks up what is above `dir`.
  Status Add(InodeNumber dir);
  // After all Add.
  Status FindNames();
  // Empty: it has been removed. After FindNames.
  std::string Of(InodeNumber dir) const;

 private:
  struct Place {
    InodeNumber parent = 0;  // 0: it has been removed
    std::string name;        // empty: no entry of the parent names it
  };

  Status FindNamesIn(InodeNumber parent, std::vector<InodeNumber>& dirs);

  Reader& reader_;
  std::unordered_map<InodeNumber, Place> places_;
};

Status Paths::Add(InodeNumber dir) {
  while (dir != kRootInode && !places_.contains(dir)) {
    const Result<InodeRecord> inode = ReadInode(reader_, dir);
    const bool removed = inode.status().code() == ESTALE || (inode.ok() && inode->attributes.nlink == 0);
    if (removed) {
      places_[dir] = {};
      return Status::Ok();
    }
    RETURN_IF_ERROR(inode.status());
    places_[dir].parent = inode->parent;
    dir = inode->parent;
  }
  return Status::Ok();
}

Status Paths::FindNames() {
  std::unordered_map<InodeNumber, std::vector<InodeNumber>> below;  // by parent
  for (const auto& [dir, place] : places_) {
    if (place.parent != 0) {
      below[place.parent].push_back(dir);
    }
  }
  for (auto& [parent, dirs] : below) {
    RETURN_IF_ERROR(FindNamesIn(parent, dirs));
  }
  return Status::Ok();
}

// As many scans as it takes to find them all.
Status Paths::FindNamesIn(InodeNumber parent, std::vector<InodeNumber>& dirs) {
  constexpr size_t kStep = 1024;
  std::sort(dirs.begin(), dirs.end());
  size_t found = 0;
  std::string from = DentryKey(parent, 0, "");
  while (found < dirs.size()) {
    ASSIGN_OR_RETURN(const auto entries, reader_.Scan(from, DentryKey(parent + 1, 0, ""), kStep));
    for (const KeyValue& entry : entries) {
      ASSIGN_OR_RETURN(const Dentry dentry, DecodeDentry(entry.value));
      if (std::binary_search(dirs.begin(), dirs.end(), dentry.ino)) {
        places_[dentry.ino].name = NameOfDentryKey(entry.key).value_or("");
        found++;
      }
    }
    if (entries.size() < kStep) {
      break;
    }
    from = entries.back().key + '\0';
  }
  return Status::Ok();
}

std::string Paths::Of(InodeNumber dir) const {
  std::vector<std::string_view> names;  // from the bottom up
  for (InodeNumber at = dir; at != kRootInode;) {
    const Place& place = places_.at(at);
    if (place.parent == 0) {
      return "";
    }
    // More names than there are directories: it goes round in a circle.
    if (place.name.empty() || names.size() == places_.size()) {
      return "(inode " + std::to_string(dir) + ", whose path is damaged: run termfs fsck)";
    }
    names.push_back(place.name);
    at = place.parent;
  }
  std::string path;
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    path.append("/").append(*name);
  }
  return path.empty() ? "/" : path;
}

}  // namespace

Result<std::vector<QuotaTree>> Namespace::ListQuotas() {
  std::vector<QuotaTree> trees;
  const std::unique_ptr<Reader> reader = store_.Snapshot();
  ASSIGN_OR_RETURN(const std::vector<Quota> quotas, ReadQuotas(*reader));
  Paths paths(*reader);
  for (const Quota& quota : quotas) {
    RETURN_IF_ERROR(paths.Add(quota.project));
  }
  RETURN_IF_ERROR(paths.FindNames());
  trees.reserve(quotas.size());
  for (const Quota& quota : quotas) {
    trees.push_back({quota, paths.Of(quota.project)});
  }
  return trees;
}

Status Namespace::SetQuota(InodeNumber dir, std::optional<uint64_t> bytes, std::optional<uint64_t> inodes) {
  ASSIGN_OR_RETURN(const bool counts, BeginQuota(dir, bytes, inodes));
  return counts ? CountTree(dir) : Status::Ok();
}

Result<bool> Namespace::BeginQuota(InodeNumber dir, std::optional<uint64_t> bytes, std::optional<uint64_t> inodes) {
  if (bytes.value_or(0) != 0 && *bytes < kPageSize) {
    return Status::Error(EINVAL, "a quota is at least one page of 4 KiB");
  }
  RETURN_IF_ERROR(NoteQuotas());
  bool counting = false;
  const Status status = Run([&](Operation& op) -> Status {
    op.LiftQuotas();
    ASSIGN_OR_RETURN(const auto claimed, op.transaction().GetForUpdate(MoveDirectoryKey()));
    (void)claimed;
    ASSIGN_OR_RETURN(InodeRecord* const root, op.ClaimDirectory(dir));
    if (root->project != 0 && root->project != dir) {
      return Status::Error(EINVAL, "a directory above it has a quota; quota trees do not nest");
    }
    ASSIGN_OR_RETURN(const auto stored, op.transaction().GetForUpdate(QuotaKey(dir)));
    Quota quota{.project = dir};
    if (stored) {
      ASSIGN_OR_RETURN(quota, DecodeQuota(dir, *stored));
    }
    quota.limits = {bytes.value_or(quota.limits.bytes), inodes.value_or(quota.limits.inodes)};
    const bool unlimited = quota.limits == QuotaLimits();
    counting = quota.counting;
    if (root->project == 0) {
      if (unlimited) {
        return Status::Ok();
      }
      RETURN_IF_ERROR(op.transaction().Grows());
      RETURN_IF_ERROR(CheckNoneBelow(op, dir));
      root->project = dir;
      counting = quota.counting = root->attributes.size != 0;
    } else if (unlimited && quota.inodes == 1 && !quota.counting) {
      root->project = 0;
      return Status::Ok();
    }
    return op.transaction().Put(QuotaKey(dir), EncodeQuota(quota));
  });
  RETURN_IF_ERROR(status);
  return counting;
}

Result<std::optional<Quota>> Namespace::FindQuota(InodeNumber ino) {
  if ((superblock().incompatible & kQuotas) == 0) {
    return std::optional<Quota>();
  }
  const std::unique_ptr<Reader> reader = store_.Snapshot();
  ASSIGN_OR_RETURN(const InodeRecord inode, ReadInode(*reader, ino));
  if (inode.project == 0) {
    return std::optional<Quota>();
  }
  ASSIGN_OR_RETURN(const auto value, reader->Get(QuotaKey(inode.project)));
  ASSIGN_OR_RETURN(const Quota quota, DecodeQuota(inode.project, value.value_or("")));
  return std::optional<Quota>(quota);
}

// The superblock says it before any inode does.
Status Namespace::NoteQuotas() {
  if ((superblock().incompatible & kQuotas) != 0) {
    return Status::Ok();
  }
  RETURN_IF_ERROR(Retry(store_, [](Transaction& transaction) -> Status {
    ASSIGN_OR_RETURN(const auto value, transaction.GetForUpdate(SuperblockKey()));
    ASSIGN_OR_RETURN(Superblock superblock, DecodeSuperblock(value.value_or("")));
    superblock.incompatible |= kQuotas;
    return transaction.Put(SuperblockKey(), EncodeSuperblock(superblock));
  }));
  MutexLock lock(superblock_mutex_);
  superblock_.incompatible |= kQuotas;
  return Status::Ok();
}

Status Namespace::EndCounts() {
  const std::unique_ptr<Reader> reader = store_.Snapshot();
  ASSIGN_OR_RETURN(const std::vector<Quota> quotas, ReadQuotas(*reader));
  for (const Quota& quota : quotas) {
    if (quota.counting) {
      RETURN_IF_ERROR(CountTree(quota.project));
    }
  }
  return Status::Ok();
}

Status Namespace::CountTree(ProjectNumber project) {
  QuotaCount count(project);
  for (bool more = true; more;) {
    ASSIGN_OR_RETURN(more, CountStep(count));
  }
  return Status::Ok();
}

Status Namespace::EndCount(ProjectNumber project) {
  return Run([&](Operation& op) -> Status {
    ASSIGN_OR_RETURN(const auto value, op.transaction().GetForUpdate(QuotaKey(project)));
    if (!value) {
      return Status::Ok();  // all of it was removed meanwhile
    }
    ASSIGN_OR_RETURN(Quota quota, DecodeQuota(project, *value));
    quota.counting = false;
    return op.transaction().Put(QuotaKey(project), EncodeQuota(quota));
  });
}

// What counts to another tree stays there.
Result<bool> Namespace::CountStep(QuotaCount& count) {
  if (count.left.empty()) {
    RETURN_IF_ERROR(EndCount(count.project));
    return false;
  }
  const InodeNumber dir = count.left.back();
  const std::string from = count.from.empty() ? DentryKey(dir, 0, "") : count.from;
  std::vector<InodeNumber> found;  // directories in it that count now
  std::string next;                // empty: that was all
  const Status status = Run([&](Operation& op) -> Status {
    op.LiftQuotas();
    found.clear();
    next.clear();
    ASSIGN_OR_RETURN(const InodeRecord* const parent, op.Claim(dir));
    if (parent->project != count.project) {
      return Status::Ok();
    }
    ASSIGN_OR_RETURN(const auto entries, op.transaction().Scan(from, DentryKey(dir + 1, 0, ""), kCountStep));
    for (const KeyValue& entry : entries) {
      ASSIGN_OR_RETURN(const Dentry dentry, DecodeDentry(entry.value));
      ASSIGN_OR_RETURN(InodeRecord* const inode, op.Claim(dentry.ino));
      if (inode->project == 0) {
        inode->project = count.project;
      }
      if (inode->project == count.project && inode->attributes.is_directory()) {
        found.push_back(dentry.ino);
      }
    }
    if (entries.size() == kCountStep) {
      next = entries.back().key + '\0';
    }
    return Status::Ok();
  });
  if (!status.ok() && status.code() != ESTALE) {  // ESTALE: the directory was removed
    return status;
  }
  if (!status.ok()) {
    found.clear();
    next.clear();
  }
  count.left.pop_back();
  count.left.insert(count.left.end(), found.begin(), found.end());
  if (!next.empty()) {
    count.left.push_back(dir);
  }
  count.from = std::move(next);
  return true;
}

}  // namespace termfs::metadata
