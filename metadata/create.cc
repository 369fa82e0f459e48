// SPDX-License-Identifier: Apache-2.0
//
// New names: Create makes an inode for one, Link gives an inode another, LinkUnnamed its first.
#include "metadata/keys.h"
#include "metadata/namespace.h"
#include "metadata/new_inode.h"
#include "metadata/operation.h"
#include "metadata/records.h"

namespace termfs::metadata {

namespace {

Status CheckNewInode(const NewInode& inode) {
  switch (TypeOfMode(inode.mode)) {
    case FileType::kSymlink:
      if (inode.symlink_target.empty()) {
        return Status::Error(ENOENT, "empty target of a symbolic link");
      }
      return inode.symlink_target.size() > kMaxSymlink ? Status::Error(ENAMETOOLONG, "target longer than 4095 bytes")
                                                       : Status::Ok();
    case FileType::kFifo:
    case FileType::kCharacter:
    case FileType::kDirectory:
    case FileType::kBlock:
    case FileType::kRegular:
    case FileType::kSocket:
      return inode.symlink_target.empty() ? Status::Ok() : Status::Error(EINVAL, "a target, but no symbolic link");
  }
  return Status::Error(EINVAL, "not a file type");
}

// Of an orphan.
Result<bool> IsNameable(Operation& op, InodeNumber ino) {
  ASSIGN_OR_RETURN(const auto value, op.transaction().Get(OrphanKey(ino)));
  return value.has_value() && *value == EncodeBytes(kNameable);
}

}  // namespace

InodeRecord MakeInode(InodeNumber ino, const NewInode& wanted, const InodeRecord& dir, Caller caller, Nanoseconds now) {
  const Attributes& parent = dir.attributes;
  InodeRecord inode;
  inode.project = dir.project;
  Attributes& a = inode.attributes;
  a.ino = ino;
  a.generation = 1;
  a.mode = wanted.mode;
  a.nlink = 1;
  a.uid = caller.uid;
  a.gid = caller.gid;
  a.atime = a.mtime = a.ctime = a.btime = now;
  if ((parent.mode & S_ISGID) != 0) {
    a.gid = parent.gid;
  }
  if (a.is_directory()) {
    a.nlink = 2;
    a.mode |= parent.mode & S_ISGID;
    inode.parent = parent.ino;
  }
  if (a.type() == FileType::kCharacter || a.type() == FileType::kBlock) {
    a.rdev = wanted.rdev;
  }
  if (a.type() == FileType::kSymlink) {
    inode.symlink_target = wanted.symlink_target;
    a.size = wanted.symlink_target.size();
  }
  a.no_xattrs.known = true;
  return inode;
}

Status InheritAcl(Operation& op, const InodeRecord& dir, uint32_t umask, InodeRecord& made) {
  Attributes& a = made.attributes;
  if (a.type() == FileType::kSymlink) {
    return Status::Ok();
  }
  ASSIGN_OR_RETURN(std::optional<Acl> acl, ReadAcl(op, dir, kDefaultAcl));
  if (!acl.has_value()) {
    a.mode &= ~(umask & 0777);
    return Status::Ok();
  }
  if (a.is_directory()) {
    RETURN_IF_ERROR(WriteAcl(op, made, kDefaultAcl, &*acl));
  }
  a.mode = acl->Inherit(a.mode);
  return WriteAcl(op, made, kAccessAcl, acl->IsMinimal() ? nullptr : &*acl);
}

Result<Attributes> Namespace::Create(InodeNumber parent, std::string_view name, const NewInode& inode, Caller caller,
                                     Nanoseconds now, const Stamp* stamp) {
  RETURN_IF_ERROR(CheckName(name));
  NewInode wanted = inode;
  if ((wanted.mode & S_IFMT) == 0) {
    wanted.mode |= S_IFREG;
  }
  wanted.mode &= S_IFMT | 07777;
  RETURN_IF_ERROR(CheckNewInode(wanted));
  InodeNumber ino = wanted.ino;
  if (ino == 0) {
    ASSIGN_OR_RETURN(ino, NextInode());
  }
  Attributes created;
  Receipt receipt;
  const Status status = Run(stamp, receipt, [&](Operation& op) -> Status {
    ASSIGN_OR_RETURN(InodeRecord* const dir, op.ClaimDirectory(parent));
    InodeRecord record = MakeInode(ino, wanted, *dir, caller, now);
    RETURN_IF_ERROR(op.transaction().Grows());
    RETURN_IF_ERROR(InheritAcl(op, *dir, caller.umask, record));
    RETURN_IF_ERROR(op.AddDentry(*dir, name, {ino, record.attributes.type()}));
    dir->attributes.Modified(now);
    dir->attributes.nlink += record.attributes.is_directory() ? 1 : 0;
    created = op.Insert(std::move(record))->attributes;
    receipt.ino = ino;
    return Status::Ok();
  });
  RETURN_IF_ERROR(status);
  return created;
}

Result<Attributes> Namespace::CreateUnnamed(InodeNumber parent, const NewInode& inode, Caller caller, Nanoseconds now,
                                            bool nameable) {
  if (TypeOfMode(inode.mode) != FileType::kRegular) {
    return Status::Error(EINVAL, "only a regular file is made without a name");
  }
  RETURN_IF_ERROR(CheckNewInode(inode));
  InodeNumber ino = inode.ino;
  if (ino == 0) {
    ASSIGN_OR_RETURN(ino, NextInode());
  }
  Attributes created;
  const Status status = Run([&](Operation& op) -> Status {
    ASSIGN_OR_RETURN(const InodeRecord* const dir, op.ClaimDirectory(parent));
    InodeRecord record = MakeInode(ino, inode, *dir, caller, now);
    record.attributes.nlink = 0;
    RETURN_IF_ERROR(op.transaction().Grows());
    RETURN_IF_ERROR(InheritAcl(op, *dir, caller.umask, record));
    RETURN_IF_ERROR(op.transaction().Put(OrphanKey(ino), EncodeBytes(nameable ? kNameable : "")));
    created = op.Insert(std::move(record))->attributes;
    return Status::Ok();
  });
  RETURN_IF_ERROR(status);
  return created;
}

Result<Attributes> Namespace::Link(InodeNumber ino, InodeNumber parent, std::string_view name, Nanoseconds now,
                                   const Stamp* stamp) {
  return AddLink(ino, parent, name, now, stamp, false);
}

Result<Attributes> Namespace::LinkUnnamed(InodeNumber ino, InodeNumber parent, std::string_view name, Nanoseconds now,
                                          const Stamp* stamp) {
  return AddLink(ino, parent, name, now, stamp, true);
}

Result<Attributes> Namespace::AddLink(InodeNumber ino, InodeNumber parent, std::string_view name, Nanoseconds now,
                                      const Stamp* stamp, bool unnamed_too) {
  RETURN_IF_ERROR(CheckName(name));
  Attributes linked;
  Receipt receipt;
  const Status status = Run(stamp, receipt, [&](Operation& op) -> Status {
    ASSIGN_OR_RETURN(InodeRecord* const dir, op.ClaimDirectory(parent));
    ASSIGN_OR_RETURN(InodeRecord* const inode, op.Claim(ino));
    Attributes& a = inode->attributes;
    if (a.is_directory()) {
      return Status::Error(EPERM, "a directory has one name");
    }
    if (inode->project != dir->project) {
      return Status::Error(EXDEV, "the directory is in another quota tree than the file");
    }
    if (a.nlink == 0) {
      ASSIGN_OR_RETURN(const bool nameable, IsNameable(op, ino));
      if (!unnamed_too || !nameable) {
        return Status::Error(ENOENT, "the file was unlinked");
      }
      RETURN_IF_ERROR(op.transaction().Delete(OrphanKey(ino)));
    }
    if (a.nlink >= kMaxLinks) {
      return Status::Error(EMLINK, "too many links");
    }
    RETURN_IF_ERROR(op.transaction().Grows());
    RETURN_IF_ERROR(op.AddDentry(*dir, name, {ino, a.type()}));
    ++a.nlink;
    a.Changed(now);
    dir->attributes.Modified(now);
    linked = a;
    return Status::Ok();
  });
  RETURN_IF_ERROR(status);
  return linked;
}

}  // namespace termfs::metadata
