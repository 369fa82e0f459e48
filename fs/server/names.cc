// SPDX-License-Identifier: Apache-2.0
//
// Operations on names: each one transaction. What a name was removed from is kept as an orphan in every case, and given
// to the reclaimer when nobody has it open: an open that comes at the same time either was counted before the look at
// the openers, or finds the orphan in the store and is refused.
#include <fcntl.h>
#include <linux/fs.h>

#include "fs/proto/codec.h"
#include "fs/server/service.h"

namespace termfs::fs::server {

using metadata::Removed;

namespace {

constexpr uint32_t kModeBits = S_IFMT | 07777;

// Whom the client acts for; only root's and the owner's mounts may say so.
Result<metadata::Caller> CallerOf(const Request& request, uint32_t uid, uint32_t gid) {
  if (!request.session.may_name_owners) {
    return Status::Error(EPERM, "this session may not act for others");
  }
  return metadata::Caller{uid, gid};
}

bool KnownType(uint32_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG:
    case S_IFDIR:
    case S_IFLNK:
    case S_IFIFO:
    case S_IFSOCK:
    case S_IFCHR:
    case S_IFBLK:
      return true;
    default:
      return false;
  }
}

}  // namespace

Result<Bytes> FileService::Lookup(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Name>(request.call.body()));
  // See "What is in memory needs no thread".
  auto found = names_.LookupInMemory(body.parent, body.name);
  if (found.status().code() == EAGAIN) {
    found = request.Blocking([&] { return names_.Lookup(body.parent, body.name); });
  }
  RETURN_IF_ERROR(found.status());
  return ReplyAttributes(*found);
}

Result<Bytes> FileService::Make(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Make>(request.call.body()));
  ASSIGN_OR_RETURN(const auto caller, CallerOf(request, body.uid, body.gid));
  if ((body.mode & ~kModeBits) != 0 || !KnownType(body.mode)) {
    return Status::Error(EINVAL, "bad mode");
  }
  metadata::NewInode inode{.mode = body.mode, .rdev = body.rdev, .symlink_target = {}};
  if (S_ISLNK(body.mode)) {
    ASSIGN_OR_RETURN(inode.symlink_target, PullString(request, metadata::kMaxSymlink));
  }
  ASSIGN_OR_RETURN(const auto made, request.Blocking([&] {
    return request.receipt != nullptr ? names_.GetAttr(request.receipt->ino)
                                      : names_.Create(body.parent, body.name, inode, caller, Now(), request.stamp);
  }));
  reclaimer_.NoteChange();
  return ReplyAttributes(made);
}

Result<Bytes> FileService::Create(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Make>(request.call.body()));
  ASSIGN_OR_RETURN(const auto caller, CallerOf(request, body.uid, body.gid));
  if ((body.mode & ~kModeBits) != 0 || (!S_ISREG(body.mode) && (body.mode & S_IFMT) != 0)) {
    return Status::Error(EINVAL, "bad mode");
  }
  if (request.receipt != nullptr && request.receipt->ino != 0) {
    ASSIGN_OR_RETURN(const auto made, ReopenInode(request, request.receipt->ino, 1, body.notify));
    return DescribeOpened(made);
  }
  const metadata::NewInode inode{.mode = S_IFREG | (body.mode & 07777), .rdev = 0, .symlink_target = {}};
  constexpr int kAttempts = 8;  // somebody else makes and removes the same name in between
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const auto made =
        request.Blocking([&] { return names_.Create(body.parent, body.name, inode, caller, Now(), request.stamp); });
    if (made.ok()) {
      reclaimer_.NoteChange();
      return OpenCreated(request, *made, body.notify);
    }
    if (made.status().code() != EEXIST || (body.flags & O_EXCL) != 0) {
      return made.status();
    }
    const auto found = request.Blocking([&] { return names_.Lookup(body.parent, body.name); });
    if (found.ok()) {
      return OpenInode(request, found->ino, body.flags, body.notify);
    }
    if (found.status().code() != ENOENT) {
      return found.status();
    }
  }
  return Status::Error(EBUSY, "the name comes and goes");
}

Result<Bytes> FileService::ReadLink(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Inode>(request.call.body()));
  ASSIGN_OR_RETURN(const auto target, request.Blocking([&] { return names_.Readlink(body.ino); }));
  RETURN_IF_ERROR(request.call.PushBulk(std::as_bytes(std::span(target))));
  return Bytes{};
}

Result<Bytes> FileService::Link(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Link>(request.call.body()));
  ASSIGN_OR_RETURN(const auto linked, request.Blocking([&] {
    return request.receipt != nullptr ? names_.GetAttr(body.ino)
                                      : names_.Link(body.ino, body.parent, body.name, Now(), request.stamp);
  }));
  NoteChanged(body.ino);
  return ReplyAttributes(linked);
}

Result<Bytes> FileService::Unlink(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Name>(request.call.body()));
  if (request.receipt != nullptr) {
    return Bytes{};
  }
  ASSIGN_OR_RETURN(const Removed removed,
                   request.Blocking([&] { return names_.Unlink(body.parent, body.name, true, Now(), request.stamp); }));
  AfterRemoval(removed);
  return Bytes{};
}

Result<Bytes> FileService::RemoveDirectory(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Name>(request.call.body()));
  if (request.receipt != nullptr) {
    return Bytes{};
  }
  ASSIGN_OR_RETURN(const Removed removed,
                   request.Blocking([&] { return names_.Rmdir(body.parent, body.name, true, Now(), request.stamp); }));
  AfterRemoval(removed);
  return Bytes{};
}

Result<Bytes> FileService::Rename(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Rename>(request.call.body()));
  auto mode = metadata::RenameMode::kReplace;
  switch (body.flags) {
    case 0:
      break;
    case RENAME_NOREPLACE:
      mode = metadata::RenameMode::kNoReplace;
      break;
    case RENAME_EXCHANGE:
      mode = metadata::RenameMode::kExchange;
      break;
    default:
      return Status::Error(EINVAL, "unknown rename flags");
  }
  if (request.receipt != nullptr) {
    return Bytes{};
  }
  ASSIGN_OR_RETURN(const auto renamed, request.Blocking([&] {
    return names_.Rename(body.parent, body.name, body.new_parent, body.new_name, mode, true, Now(), request.stamp);
  }));
  NoteChanged(renamed.ino);
  AfterRemoval(renamed.replaced);
  return Bytes{};
}

void FileService::AfterRemoval(const Removed& removed) {
  NoteChanged(removed.ino);
  if (!removed.orphaned) {
    return;
  }
  if (const InodeRef inode = inodes_.Find(removed.ino)) {
    MutexLock lock(inode->mutex);
    inode->unlinked = true;
    if (!inode->opens.empty()) {
      return;  // its last closer gives it to the reclaimer
    }
  }
  reclaimer_.AddOrphan(removed.ino);
}

void FileService::NoteChanged(uint64_t ino) {
  reclaimer_.NoteChange();
  if (const InodeRef inode = inodes_.Find(ino)) {
    // The store's ctime is now. If the inode owes it times, they must not set it back.
    MutexLock lock(inode->mutex);
    inode->ctime = std::max(inode->ctime, Now());
    ++inode->times_sequence;
  }
}

}  // namespace termfs::fs::server
