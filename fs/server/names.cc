// SPDX-License-Identifier: Apache-2.0
//
// Operations on names: each one transaction. What loses its last name ends in the same (fs/server/ending.h), or stays
// as an orphan for those who have it open.
#include <fcntl.h>
#include <linux/fs.h>

#include "fs/proto/codec.h"
#include "fs/server/ending.h"
#include "fs/server/service.h"

namespace termfs::fs::server {

using metadata::Removed;

namespace {

constexpr uint32_t kModeBits = S_IFMT | 07777;

// Whom the client acts for; only root's and the owner's mounts may say so.
Result<metadata::Caller> CallerOf(const Request& request, const metadata::Caller& named) {
  if (!request.session.may_name_owners) {
    return Status::Error(EPERM, "this session may not act for others");
  }
  return named;
}
Result<metadata::Caller> CallerOf(const Request& request, const wire::MakeT& body) {
  return CallerOf(request, metadata::Caller{.uid = body.uid, .gid = body.gid, .umask = body.umask});
}

// Whether the mode alone lets the caller open the file so, whatever further groups it is in.
bool SurelyMayOpen(const metadata::Caller& caller, const metadata::Attributes& file, int flags) {
  constexpr uint32_t kRead = 4;
  constexpr uint32_t kWrite = 2;
  const int access = flags & O_ACCMODE;
  uint32_t needed = access == O_RDONLY ? kRead : access == O_WRONLY ? kWrite : kRead | kWrite;
  if ((flags & O_TRUNC) != 0) {
    needed |= kWrite;
  }
  const uint32_t group = file.mode >> 3;
  uint32_t granted = group & file.mode;  // it may be in the group, or not
  if (caller.uid == file.uid) {
    granted = file.mode >> 6;
  } else if (caller.gid == file.gid) {
    granted = group;
  }
  return (granted & needed) == needed;
}

// Of what a request has made before: somebody has removed it since.
bool IsGone(const Status& status) { return status.code() == ENOENT || status.code() == ESTALE; }

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
  Granting granting(coherence_.grants(), request.session);
  if (body.name != "." && body.name != "..") {  // whose meaning changes with other names
    granting.Entry(body.parent, body.name);
  }
  const bool first_may_come = FirstMayCome();
  // See "What is in memory needs no thread".
  auto found = names_.LookupInMemory(body.parent, body.name);
  if (found.status().code() == EAGAIN) {
    found = request.Blocking([&] { return names_.Lookup(body.parent, body.name); });
  }
  if (found.status().code() == ENOENT && granting.entry()) {
    wire::AttributesReplyT reply;
    reply.entry_ms = Milliseconds(true);
    return Encode<wire::AttributesReply>(reply);
  }
  RETURN_IF_ERROR(found.status());
  ASSIGN_OR_RETURN(const bool waited, AwaitFirst(request, first_may_come, *found));
  if (waited) {
    ASSIGN_OR_RETURN(*found, request.Blocking([&] { return names_.GetAttr(found->ino); }));
  }
  return ReplyAttributes(GrantAttributes(granting, *found), granting);
}

Result<Bytes> FileService::Make(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Make>(request.call.body()));
  ASSIGN_OR_RETURN(const auto caller, CallerOf(request, body));
  if ((body.mode & ~kModeBits) != 0 || !KnownType(body.mode)) {
    return Status::Error(EINVAL, "bad mode");
  }
  metadata::NewInode inode{.mode = body.mode, .rdev = body.rdev, .symlink_target = {}};
  if (S_ISLNK(body.mode)) {
    ASSIGN_OR_RETURN(inode.symlink_target, PullString(request, metadata::kMaxSymlink));
  }
  const NameLocks::Hold changing(name_locks_, {GrantKey::Entry(body.parent, body.name)});
  Granting granting(coherence_.grants(), request.session);
  // What was made before may have another name by now, or none: nothing is granted of it.
  const bool again = request.receipt != nullptr;
  if (!again) {
    granting.Entry(body.parent, body.name);
  }
  const auto make = [&] {
    return request.Blocking([&] {
      return again ? names_.GetAttr(request.receipt->ino)
                   : names_.Create(body.parent, body.name, inode, caller, Now(), request.stamp);
    });
  };
  auto attributes = make();
  if (attributes.status().code() == EDQUOT && MayGetRoom(attributes.status())) {
    attributes = make();
  }
  if (again && IsGone(attributes.status())) {  // made it was, and no name of it will be found
    attributes = metadata::Attributes{.ino = request.receipt->ino, .mode = body.mode, .uid = body.uid, .gid = body.gid};
  }
  ASSIGN_OR_RETURN(const auto made, std::move(attributes));
  reclaimer_.NoteChange();
  const metadata::Attributes granted = again ? made : GrantAttributes(granting, made);
  coherence_.Recall(request.session.id, {body.parent}, {{body.parent, body.name}});
  return ReplyChange(request, granted, granting, body.parent);
}

Result<Bytes> FileService::Create(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Make>(request.call.body()));
  ASSIGN_OR_RETURN(const auto caller, CallerOf(request, body));
  if ((body.mode & ~kModeBits) != 0 || (!S_ISREG(body.mode) && (body.mode & S_IFMT) != 0)) {
    return Status::Error(EINVAL, "bad mode");
  }
  if (request.receipt != nullptr && request.receipt->ino != 0) {
    auto again = ReopenInode(request, request.receipt->ino, 1, false);
    if (IsGone(again.status())) {  // a file of no name, as it would be if the first reply had come before the removal
      again = CreateOpen(request, body, [&](const metadata::NewInode& wanted) {
        return names_.CreateUnnamed(body.parent, wanted, caller, Now(), /*nameable=*/false);
      });
    }
    ASSIGN_OR_RETURN(const auto made, std::move(again));
    Granting nothing(coherence_.grants(), request.session);  // as for what Make has made before
    coherence_.Recall(request.session.id, {body.parent}, {{body.parent, body.name}});
    return DescribeOpened(request, made, body.parent, nothing);
  }
  const NameLocks::Hold changing(name_locks_, {GrantKey::Entry(body.parent, body.name)});
  Granting granting(coherence_.grants(), request.session);
  granting.Entry(body.parent, body.name);
  bool waited = false;
  constexpr int kAttempts = 8;  // somebody else makes and removes the same name in between
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const auto made = CreateOpen(request, body, [&](const metadata::NewInode& wanted) {
      return names_.Create(body.parent, body.name, wanted, caller, Now(), request.stamp);
    });
    if (made.ok()) {
      reclaimer_.NoteChange();
      const metadata::Attributes granted = GrantAttributes(granting, *made);
      auto reply = DescribeOpened(request, granted, body.parent, granting);
      coherence_.Recall(request.session.id, {body.parent}, {{body.parent, body.name}});
      return reply;
    }
    if (made.status().code() == EDQUOT && !waited && MayGetRoom(made.status())) {
      waited = true;
      continue;
    }
    if (made.status().code() != EEXIST || (body.flags & O_EXCL) != 0) {
      return made.status();
    }
    bool has_acl = false;
    const auto found = request.Blocking([&] {
      auto looked_up = names_.Lookup(body.parent, body.name);
      has_acl = looked_up.ok() && HasAcl(looked_up->ino);
      return looked_up;
    });
    // The kernel found no such name, so it has not checked, nor does it when a create succeeds. At ESTALE it looks the
    // name up again, and decides itself.
    if (found.ok() &&
        (found->type() != metadata::FileType::kRegular || has_acl || !SurelyMayOpen(caller, *found, body.flags))) {
      return Status::Error(ESTALE, "another has made it, and it is no file, or the caller may not be let in");
    }
    // Asked again, it has been made empty before.
    const int flags = request.receipt != nullptr ? body.flags & ~O_TRUNC : body.flags;
    auto opened = found.ok() ? OpenInode(request, found->ino, flags, false) : found.status();
    if (opened.status().code() != ENOENT && opened.status().code() != ESTALE) {
      return opened;
    }
  }
  return Status::Error(EBUSY, "the name comes and goes");
}

// Made twice, when the reply was lost, is not worse than once: nobody ever sees the first, and it ends with its
// session.
Result<Bytes> FileService::MakeUnnamed(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Make>(request.call.body()));
  ASSIGN_OR_RETURN(const auto caller, CallerOf(request, body));
  if ((body.mode & ~kModeBits) != 0 || (!S_ISREG(body.mode) && (body.mode & S_IFMT) != 0)) {
    return Status::Error(EINVAL, "bad mode");
  }
  ASSIGN_OR_RETURN(const auto made, CreateOpen(request, body, [&](const metadata::NewInode& wanted) {
                     return names_.CreateUnnamed(body.parent, wanted, caller, Now(), (body.flags & O_EXCL) == 0);
                   }));
  reclaimer_.NoteChange();
  wire::OpenedT reply;
  reply.attributes = std::make_unique<wire::Attributes>(ToWire(Report(made)));
  return Encode<wire::Opened>(reply);
}

Result<Bytes> FileService::ReadLink(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Inode>(request.call.body()));
  std::optional<metadata::Attributes> link;
  ASSIGN_OR_RETURN(const auto target, request.Blocking([&]() -> Result<std::string> {
    ASSIGN_OR_RETURN(link, names_.GetAttr(body.ino));
    return names_.Readlink(body.ino);
  }));
  if (!body.keeps_atime) {
    NoteAccess(request, *link);
  }
  RETURN_IF_ERROR(request.call.PushBulk(std::as_bytes(std::span(target))));
  return Bytes{};
}

Result<Bytes> FileService::Link(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Link>(request.call.body()));
  RETURN_IF_ERROR(AwaitFirstToChange(request, body.ino));
  const NameLocks::Hold changing(name_locks_, {GrantKey::Entry(body.parent, body.name)});
  // No attributes: the kernel would take them also when they have been recalled, which it keeps note of for replies
  // that make no inode only.
  Granting granting(coherence_.grants(), request.session);
  const bool again = request.receipt != nullptr;
  if (!again) {
    granting.Entry(body.parent, body.name);
  }
  ASSIGN_OR_RETURN(const auto linked,
                   again ? request.Blocking([&] { return names_.GetAttr(body.ino); }) : AddLink(request, body));
  NoteChanged(body.ino, linked.ctime);
  coherence_.Recall(request.session.id, {body.ino, body.parent}, {{body.parent, body.name}});
  return ReplyChange(request, linked, granting, body.parent);
}

Result<metadata::Attributes> FileService::AddLink(const Request& request, const wire::LinkT& body) {
  const auto unnamed_here = [&](Inode& inode) {
    MutexLock lock(inode.mutex);
    return inode.unlinked && inode.opens.contains(request.session.id);
  };
  const InodeRef inode = inodes_.Find(body.ino);
  if (!inode || !unnamed_here(*inode)) {
    return request.Blocking([&] { return names_.Link(body.ino, body.parent, body.name, Now(), request.stamp); });
  }
  ASSIGN_OR_RETURN(const GateHold hold, GateHold::Enter(*inode, GateMode::kExclusive, request.session));
  const bool unnamed = unnamed_here(*inode);  // or somebody has been faster
  {
    // Before the store has the name: who removes that again says so afterwards.
    MutexLock lock(inode->mutex);
    inode->unlinked &= !unnamed;
  }
  auto linked =
      request.Blocking([&] { return names_.LinkUnnamed(body.ino, body.parent, body.name, Now(), request.stamp); });
  if (linked.ok()) {
    reclaimer_.ForgetOrphan(body.ino);
    return linked;
  }
  MutexLock lock(inode->mutex);
  inode->unlinked |= unnamed;
  if (unnamed && inode->opens.empty()) {
    reclaimer_.AddOrphan(body.ino);
  }
  return linked;
}

Result<Bytes> FileService::ReplyRemoved(const Request& request, uint64_t parent, std::string_view name, uint64_t ino) {
  coherence_.Recall(request.session.id, {ino, parent}, {{parent, name}});
  wire::AttributesReplyT reply;
  if (ino != 0) {
    reply.changed.push_back(ino);
  }
  BringDirectory(request, parent, reply);
  return Encode<wire::AttributesReply>(reply);
}

Result<Bytes> FileService::Unlink(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Name>(request.call.body()));
  if (request.receipt != nullptr) {
    return ReplyRemoved(request, body.parent, body.name, 0);
  }
  const NameLocks::Hold changing(name_locks_, {GrantKey::Entry(body.parent, body.name)});
  const Nanoseconds now = Now();
  ASSIGN_OR_RETURN(const Removed removed, request.Blocking([&]() -> Result<Removed> {
    Ending ending(names_, inodes_, clients_, replaced_, Ending::By::kRemoval);
    ASSIGN_OR_RETURN(Removed gone, names_.Unlink(body.parent, body.name, ending.may_be_open(), now, request.stamp));
    ending.Committed(gone);
    return gone;
  }));
  AfterRemoval(removed, now);
  return ReplyRemoved(request, body.parent, body.name, removed.ino);
}

Result<Bytes> FileService::RemoveDirectory(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Name>(request.call.body()));
  if (request.receipt != nullptr) {
    return ReplyRemoved(request, body.parent, body.name, 0);
  }
  const NameLocks::Hold changing(name_locks_, {GrantKey::Entry(body.parent, body.name)});
  const Nanoseconds now = Now();
  ASSIGN_OR_RETURN(const Removed removed, request.Blocking([&]() -> Result<Removed> {
    Ending ending(names_, inodes_, clients_, replaced_, Ending::By::kRemoval);
    ASSIGN_OR_RETURN(Removed gone, names_.Rmdir(body.parent, body.name, ending.may_be_open(), now, request.stamp));
    ending.Committed(gone);
    return gone;
  }));
  AfterRemoval(removed, now);
  return ReplyRemoved(request, body.parent, body.name, removed.ino);
}

Result<Bytes> FileService::Rename(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Rename>(request.call.body()));
  auto mode = metadata::RenameMode::kReplace;
  std::optional<metadata::Caller> whiteout;
  if ((body.flags & RENAME_WHITEOUT) != 0) {
    ASSIGN_OR_RETURN(whiteout, CallerOf(request, metadata::Caller{.uid = body.uid, .gid = body.gid}));
  }
  switch (body.flags & ~uint32_t{RENAME_WHITEOUT}) {
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
    coherence_.Recall(request.session.id, {body.parent, body.new_parent},
                      {{body.parent, body.name}, {body.new_parent, body.new_name}});
    return Encode<wire::AttributesReply>({});
  }
  const NameLocks::Hold changing(
      name_locks_, {GrantKey::Entry(body.parent, body.name), GrantKey::Entry(body.new_parent, body.new_name)});
  // The caller's kernel moves what it knows by the one name to the other, with the time that is left.
  if (request.session.caches.load(std::memory_order_relaxed)) {
    coherence_.grants().AddAlways(GrantKey::Entry(body.new_parent, body.new_name), request.session.id);
    coherence_.grants().AddAlways(GrantKey::Entry(body.parent, body.name), request.session.id);
  }
  const Nanoseconds now = Now();
  ASSIGN_OR_RETURN(const auto renamed, request.Blocking([&]() -> Result<metadata::Renamed> {
    Ending ending(names_, inodes_, clients_, replaced_, Ending::By::kReplacement);
    ASSIGN_OR_RETURN(auto done,
                     names_.Rename(body.parent, body.name, body.new_parent, body.new_name, mode, ending.may_be_open(),
                                   now, request.stamp, whiteout.has_value() ? &*whiteout : nullptr));
    ending.Committed(done.replaced);
    return done;
  }));
  wire::AttributesReplyT reply;
  reply.changed = {renamed.ino, renamed.replaced.ino, renamed.exchanged};
  if (renamed.ino == 0) {
    return Encode<wire::AttributesReply>(reply);
  }
  NoteChanged(renamed.ino, now);
  NoteChanged(renamed.exchanged, now);
  AfterRemoval(renamed.replaced, now);
  AfterReplacement(renamed);
  coherence_.Recall(request.session.id,
                    {renamed.ino, renamed.replaced.ino, renamed.exchanged, body.parent, body.new_parent},
                    {{body.parent, body.name}, {body.new_parent, body.new_name}});
  return Encode<wire::AttributesReply>(reply);
}

void FileService::AfterRemoval(const Removed& removed, Nanoseconds now) {
  NoteChanged(removed.ino, now);
  if (removed.freed_pages) {
    reclaimer_.NoteFreed();
  }
  if (!removed.orphaned) {
    return;
  }
  bool in_grace = false;
  if (const InodeRef inode = inodes_.Find(removed.ino)) {
    MutexLock lock(inode->mutex);
    inode->unlinked = true;
    for (const auto& [session, opener] : inode->opens) {
      if (opener.leases > 0) {  // it may have closed the file already, and is told
        coherence_.grants().AddAlways(GrantKey::Attributes(removed.ino), session);
      }
    }
    in_grace = inode->graces > 0;
    if (!inode->opens.empty() && !in_grace) {
      return;  // its last closer gives it to the reclaimer
    }
  }
  if (in_grace) {
    reclaimer_.NoteGrace();  // whose end gives it to the reclaimer, or the last closer if that is later
    return;
  }
  reclaimer_.AddOrphan(removed.ino);
}

void FileService::AfterReplacement(const metadata::Renamed& renamed) {
  if (!replaced_.enabled()) {
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  const auto keep = [&](uint64_t ino) {
    InodeRef inode = inodes_.Get(ino);
    ReplacedInodes::BeginGrace(*inode);
    replaced_.Add(std::move(inode), nullptr, now);
    reclaimer_.NoteGrace();
  };
  if (renamed.exchanged != 0) {
    keep(renamed.ino);
    keep(renamed.exchanged);
  } else if (renamed.replaced.ino != 0 && !renamed.replaced.last_link) {
    keep(renamed.replaced.ino);
  }
}

void FileService::NoteChanged(uint64_t ino, Nanoseconds ctime) {
  reclaimer_.NoteChange();
  if (const InodeRef inode = inodes_.Find(ino)) {
    // If the inode owes the store times, they must not set it back.
    MutexLock lock(inode->mutex);
    inode->ctime = std::max(inode->ctime, ctime);
    ++inode->times_sequence;
  }
}

}  // namespace termfs::fs::server
