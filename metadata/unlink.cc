// SPDX-License-Identifier: Apache-2.0
#include "metadata/content.h"
#include "metadata/namespace.h"
#include "metadata/operation.h"

namespace termfs::metadata {

namespace {

// The dentry of `name`, which must exist.
Result<Dentry> Find(Operation& op, const InodeRecord& dir, std::string_view name) {
  ASSIGN_OR_RETURN(const std::optional<Dentry> dentry, op.FindDentry(dir, name));
  if (!dentry) {
    return Status::Error(ENOENT, "no such name");
  }
  return *dentry;
}

}  // namespace

Result<Removed> Namespace::Unlink(InodeNumber parent, std::string_view name, const MayBeOpen& open, Nanoseconds now,
                                  const Stamp* stamp) {
  RETURN_IF_ERROR(CheckName(name));
  Removed removed;
  Receipt receipt;
  const Status status = Run(stamp, receipt, [&](Operation& op) -> Status {
    op.transaction().Frees();
    ASSIGN_OR_RETURN(InodeRecord* const dir, op.ClaimDirectory(parent));
    ASSIGN_OR_RETURN(const Dentry dentry, Find(op, *dir, name));
    if (dentry.type == FileType::kDirectory) {
      return Status::Error(EISDIR, "is a directory");
    }
    ASSIGN_OR_RETURN(InodeRecord* const inode, op.Claim(dentry.ino));
    RETURN_IF_ERROR(op.DeleteDentry(*dir, name));
    dir->attributes.Modified(now);
    ASSIGN_OR_RETURN(removed, DropLink(op, *inode, open, now));
    return Status::Ok();
  });
  RETURN_IF_ERROR(status);
  return removed;
}

Result<Removed> Namespace::Rmdir(InodeNumber parent, std::string_view name, const MayBeOpen& open, Nanoseconds now,
                                 const Stamp* stamp) {
  if (name == "..") {
    return Status::Error(ENOTEMPTY, "the parent of a directory is not empty");
  }
  RETURN_IF_ERROR(CheckName(name));
  Removed removed;
  Receipt receipt;
  const Status status = Run(stamp, receipt, [&](Operation& op) -> Status {
    op.transaction().Frees();
    ASSIGN_OR_RETURN(InodeRecord* const dir, op.ClaimDirectory(parent));
    ASSIGN_OR_RETURN(const Dentry dentry, Find(op, *dir, name));
    if (dentry.type != FileType::kDirectory) {
      return Status::Error(ENOTDIR, "not a directory");
    }
    ASSIGN_OR_RETURN(InodeRecord* const victim, op.Claim(dentry.ino));
    if (victim->attributes.size != 0) {
      return Status::Error(ENOTEMPTY, "directory not empty");
    }
    RETURN_IF_ERROR(op.DeleteDentry(*dir, name));
    dir->attributes.Modified(now);
    --dir->attributes.nlink;
    ASSIGN_OR_RETURN(removed, DropLink(op, *victim, open, now));
    return Status::Ok();
  });
  RETURN_IF_ERROR(status);
  return removed;
}

}  // namespace termfs::metadata
