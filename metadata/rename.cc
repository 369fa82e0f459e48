// SPDX-License-Identifier: Apache-2.0
//
// Rename, in all its modes. A directory that changes its parent could make a circle; so whoever moves one claims
// MoveDirectoryKey before looking at the ancestors, which then stay as they are until the end of the transaction.
#include <algorithm>

#include "metadata/content.h"
#include "metadata/keys.h"
#include "metadata/namespace.h"
#include "metadata/new_inode.h"
#include "metadata/operation.h"

namespace termfs::metadata {

namespace {

struct Place {
  InodeRecord* dir = nullptr;
  std::string_view name;
  std::optional<Dentry> dentry;

  bool directory() const { return dentry && dentry->type == FileType::kDirectory; }
};

struct NewWhiteout {
  InodeNumber ino = 0;
  Caller owner;
};

// EINVAL when `dir` is `ancestor` or below it.
Status CheckNotBelow(Operation& op, InodeNumber dir, InodeNumber ancestor) {
  constexpr int kMaxDepth = 1 << 20;
  for (int depth = 0; depth < kMaxDepth; ++depth) {
    if (dir == ancestor) {
      return Status::Error(EINVAL, "a directory cannot move below itself");
    }
    if (dir == kRootInode) {
      return Status::Ok();
    }
    ASSIGN_OR_RETURN(const InodeRecord inode, ReadInode(op.transaction(), dir));
    dir = inode.parent;
  }
  return Status::Error(EIO, "the directories form a circle: run termfs fsck");
}

// For each of the two that is a directory and changes its parent (`to` only in an exchange).
Status CheckMoves(Operation& op, const Place& from, const Place& to, bool exchange) {
  const bool to_moves = exchange && to.directory();
  if (from.dir == to.dir || (!from.directory() && !to_moves)) {
    return Status::Ok();
  }
  ASSIGN_OR_RETURN(const auto claimed, op.transaction().GetForUpdate(MoveDirectoryKey()));
  (void)claimed;
  if (from.directory()) {
    RETURN_IF_ERROR(CheckNotBelow(op, to.dir->attributes.ino, from.dentry->ino));
  }
  return to_moves ? CheckNotBelow(op, from.dir->attributes.ino, to.dentry->ino) : Status::Ok();
}

Status CheckReplaces(const Place& from, const Place& to, const InodeRecord& victim) {
  if (from.directory() && !to.directory()) {
    return Status::Error(ENOTDIR, "a directory cannot replace a file");
  }
  if (!from.directory() && to.directory()) {
    return Status::Error(EISDIR, "a file cannot replace a directory");
  }
  if (to.directory() && victim.attributes.size != 0) {
    return Status::Error(ENOTEMPTY, "directory not empty");
  }
  return Status::Ok();
}

// What moves stays in its quota tree. A file of the tree that is not counted yet is counted now; a directory has to
// wait, as who counts might miss what is in it. A file that is counted to another tree, where it had a name before
// there were quotas, stays counted there.
Status KeepProject(Operation& op, InodeRecord& moved, const InodeRecord& from, const InodeRecord& to) {
  if (moved.project_around() == to.project) {
    return Status::Ok();
  }
  if (from.project == to.project && !moved.attributes.is_directory()) {
    if (moved.project == 0) {
      op.LiftQuotas();
      moved.project = to.project;
    }
    return Status::Ok();
  }
  return Status::Error(EXDEV, "the directory is in another quota tree");
}

// What a directory's move means for itself and its parents.
void Reparent(InodeRecord& moved, InodeRecord& from, InodeRecord& to) {
  if (moved.attributes.is_directory()) {
    --from.attributes.nlink;
    ++to.attributes.nlink;
    moved.parent = to.attributes.ino;
  }
}

// In the old name's place.
Status LeaveWhiteout(Operation& op, const Place& from, const NewWhiteout& whiteout, Nanoseconds now) {
  RETURN_IF_ERROR(op.transaction().Grows());
  const NewInode wanted{.mode = S_IFCHR, .rdev = 0, .symlink_target = {}};
  InodeRecord record = MakeInode(whiteout.ino, wanted, *from.dir, whiteout.owner, now);
  RETURN_IF_ERROR(InheritAcl(op, *from.dir, 0, record));
  RETURN_IF_ERROR(op.ReplaceDentry(*from.dir, from.name, {whiteout.ino, FileType::kCharacter, from.dentry->index}));
  op.Insert(std::move(record));
  return Status::Ok();
}

Result<Removed> Replace(Operation& op, const Place& from, const Place& to, const MayBeOpen& open, Nanoseconds now,
                        const NewWhiteout* whiteout) {
  RETURN_IF_ERROR(CheckMoves(op, from, to, false));
  ASSIGN_OR_RETURN(InodeRecord* const moved, op.Claim(from.dentry->ino));
  RETURN_IF_ERROR(KeepProject(op, *moved, *from.dir, *to.dir));
  InodeRecord* victim = nullptr;
  if (to.dentry) {
    ASSIGN_OR_RETURN(victim, op.Claim(to.dentry->ino));
    RETURN_IF_ERROR(CheckReplaces(from, to, *victim));
  }
  if (whiteout != nullptr) {
    RETURN_IF_ERROR(LeaveWhiteout(op, from, *whiteout, now));
  } else {
    RETURN_IF_ERROR(op.DeleteDentry(*from.dir, from.name));
  }
  if (victim == nullptr) {
    RETURN_IF_ERROR(op.AddDentry(*to.dir, to.name, {from.dentry->ino, from.dentry->type}));
  } else {
    RETURN_IF_ERROR(op.ReplaceDentry(*to.dir, to.name, {from.dentry->ino, from.dentry->type, to.dentry->index}));
  }
  Reparent(*moved, *from.dir, *to.dir);
  moved->attributes.Changed(now);
  if (victim == nullptr) {
    return Removed{};
  }
  to.dir->attributes.nlink -= to.directory() ? 1 : 0;
  return DropLink(op, *victim, open, now);
}

Status Exchange(Operation& op, const Place& from, const Place& to, Nanoseconds now) {
  RETURN_IF_ERROR(CheckMoves(op, from, to, true));
  ASSIGN_OR_RETURN(InodeRecord* const first, op.Claim(from.dentry->ino));
  ASSIGN_OR_RETURN(InodeRecord* const second, op.Claim(to.dentry->ino));
  RETURN_IF_ERROR(KeepProject(op, *first, *from.dir, *to.dir));
  RETURN_IF_ERROR(KeepProject(op, *second, *to.dir, *from.dir));
  RETURN_IF_ERROR(op.ReplaceDentry(*from.dir, from.name, {to.dentry->ino, to.dentry->type, from.dentry->index}));
  RETURN_IF_ERROR(op.ReplaceDentry(*to.dir, to.name, {from.dentry->ino, from.dentry->type, to.dentry->index}));
  Reparent(*first, *from.dir, *to.dir);
  Reparent(*second, *to.dir, *from.dir);
  first->attributes.Changed(now);
  second->attributes.Changed(now);
  return Status::Ok();
}

Status OpenPlaces(Operation& op, InodeNumber old_parent, InodeNumber new_parent, Place& from, Place& to) {
  // In the order of their numbers, so that two renames do not wait for each other.
  RETURN_IF_ERROR(op.Claim(std::min(old_parent, new_parent)).status());
  ASSIGN_OR_RETURN(from.dir, op.ClaimDirectory(old_parent));
  ASSIGN_OR_RETURN(to.dir, op.ClaimDirectory(new_parent));
  ASSIGN_OR_RETURN(from.dentry, op.FindDentry(*from.dir, from.name));
  ASSIGN_OR_RETURN(to.dentry, op.FindDentry(*to.dir, to.name));
  return from.dentry ? Status::Ok() : Status::Error(ENOENT, "no such name");
}

}  // namespace

Result<Renamed> Namespace::Rename(InodeNumber old_parent, std::string_view old_name, InodeNumber new_parent,
                                  std::string_view new_name, RenameMode mode, const MayBeOpen& open, Nanoseconds now,
                                  const Stamp* stamp, const Caller* whiteout) {
  RETURN_IF_ERROR(CheckName(old_name));
  RETURN_IF_ERROR(CheckName(new_name));
  NewWhiteout left;
  if (whiteout != nullptr) {
    if (mode == RenameMode::kExchange) {
      return Status::Error(EINVAL, "an exchange leaves no whiteout");
    }
    ASSIGN_OR_RETURN(left.ino, NextInode());
    left.owner = *whiteout;
  }
  Renamed result;
  Receipt receipt;
  const Status status = Run(stamp, receipt, [&](Operation& op) -> Status {
    result = {};
    Place from{nullptr, old_name, {}};
    Place to{nullptr, new_name, {}};
    RETURN_IF_ERROR(OpenPlaces(op, old_parent, new_parent, from, to));
    if (mode == RenameMode::kNoReplace && to.dentry) {
      return Status::Error(EEXIST, "the name exists");
    }
    if (mode == RenameMode::kExchange && !to.dentry) {
      return Status::Error(ENOENT, "no such name to exchange with");
    }
    if (to.dentry && to.dentry->ino == from.dentry->ino) {
      return Status::Ok();
    }
    if (mode == RenameMode::kExchange) {
      RETURN_IF_ERROR(Exchange(op, from, to, now));
      result.exchanged = to.dentry->ino;
    } else {
      ASSIGN_OR_RETURN(result.replaced, Replace(op, from, to, open, now, whiteout != nullptr ? &left : nullptr));
    }
    result.ino = from.dentry->ino;
    from.dir->attributes.Modified(now);
    to.dir->attributes.Modified(now);
    return Status::Ok();
  });
  RETURN_IF_ERROR(status);
  return result;
}

}  // namespace termfs::metadata
