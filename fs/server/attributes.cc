// SPDX-License-Identifier: Apache-2.0
#include "fs/proto/codec.h"
#include "fs/server/service.h"

namespace termfs::fs::server {

namespace {

constexpr uint64_t kBlocksPerPage = kPageSize / 512;
constexpr int64_t kNanosecondsPerSecond = 1'000'000'000;

bool Has(uint32_t what, wire::SetField field) { return (what & static_cast<uint32_t>(field)) != 0; }

metadata::AttributeChange ChangeOf(const wire::SetT& body, Nanoseconds now) {
  metadata::AttributeChange change;
  if (Has(body.what, wire::SetField::Mode)) {
    change.mode = body.mode & 07777;
  }
  if (Has(body.what, wire::SetField::Uid)) {
    change.uid = body.uid;
  }
  if (Has(body.what, wire::SetField::Gid)) {
    change.gid = body.gid;
  }
  if (Has(body.what, wire::SetField::AtimeNow)) {
    change.atime = now;
  } else if (Has(body.what, wire::SetField::Atime)) {
    change.atime = Nanoseconds(body.atime);
  }
  if (Has(body.what, wire::SetField::MtimeNow)) {
    change.mtime = now;
  } else if (Has(body.what, wire::SetField::Mtime)) {
    change.mtime = Nanoseconds(body.mtime);
  }
  return change;
}

}  // namespace

Attributes FileService::Report(metadata::Attributes a) {
  if (const InodeRef inode = inodes_.Find(a.ino)) {
    MutexLock lock(inode->mutex);
    inode->Merge(a);
  }
  return {.ino = a.ino,
          .generation = a.generation,
          .mode = a.mode,
          .nlink = a.nlink,
          .uid = a.uid,
          .gid = a.gid,
          .rdev = static_cast<uint32_t>(a.rdev),
          .size = a.size,
          .blocks = a.BlocksInUse() * kBlocksPerPage,
          .atime = a.atime.count(),
          .mtime = a.mtime.count(),
          .ctime = a.ctime.count(),
          .btime = a.btime.count(),
          .no_xattrs = a.no_xattrs.known};
}

metadata::Attributes FileService::GrantAttributes(Granting& granting, const metadata::Attributes& read) {
  if (coherence_.IsContended(read.ino, granting.session())) {
    return read;
  }
  if (!IsChanging(read.ino) && granting.Attributes(read.ino) && granting.Changed()) {
    if (const auto again = names_.GetAttrInMemory(read.ino); again.ok()) {
      return *again;
    }
    granting.NoAttributes();
  }
  return read;
}

Result<Bytes> FileService::ReplyAttributes(const metadata::Attributes& attributes, const Granting& granting) {
  return Encode<wire::AttributesReply>(AttributesReply(attributes, granting));
}

Result<Bytes> FileService::ReplyChange(const Request& request, const metadata::Attributes& attributes,
                                       const Granting& granting, uint64_t directory) {
  wire::AttributesReplyT reply = AttributesReply(attributes, granting);
  BringDirectory(request, directory, reply);
  return Encode<wire::AttributesReply>(reply);
}

wire::AttributesReplyT FileService::AttributesReply(const metadata::Attributes& attributes, const Granting& granting) {
  wire::AttributesReplyT reply;
  reply.attributes = std::make_unique<wire::Attributes>(ToWire(Report(attributes)));
  reply.entry_ms = Milliseconds(granting.entry());
  reply.attributes_ms = Milliseconds(granting.attributes() && !IsChanging(attributes.ino));  // asked after the grant
  return reply;
}

Result<Bytes> FileService::GetAttributes(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Inode>(request.call.body()));
  RETURN_IF_ERROR(AwaitFirst(request, body.ino));
  const bool first_may_come = FirstMayCome();
  Granting granting(coherence_.grants(), request.session);
  if (coherence_.IsContended(body.ino, request.session.id)) {
    granting.NoAttributes();
  } else if (!IsChanging(body.ino)) {
    granting.Attributes(body.ino);
  } else if (granting.caches() && HasOpen(body.ino, request.session)) {
    // It is granted nothing, but told when the change is done: its kernel is not to take over a late reply then.
    coherence_.grants().AddAlways(GrantKey::Attributes(body.ino), request.session.id);
  }
  // See "What is in memory needs no thread".
  auto attributes = names_.GetAttrInMemory(body.ino);
  if (attributes.status().code() == EAGAIN) {
    attributes = request.Blocking([&] { return names_.GetAttr(body.ino); });
  }
  RETURN_IF_ERROR(attributes.status());
  ASSIGN_OR_RETURN(const bool waited, AwaitFirst(request, first_may_come, *attributes));
  if (waited) {
    ASSIGN_OR_RETURN(*attributes, request.Blocking([&] { return names_.GetAttr(body.ino); }));
  }
  return ReplyAttributes(*attributes, granting);
}

Result<Bytes> FileService::Set(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Set>(request.call.body()));
  const uint32_t known = (static_cast<uint32_t>(wire::SetField::ClearGroupId) << 1) - 1;
  if ((body.what & ~known) != 0 || body.atime < -kNanosecondsPerSecond * (int64_t{1} << 31) ||
      body.mtime < -kNanosecondsPerSecond * (int64_t{1} << 31)) {
    return Status::Error(EINVAL, "bad attributes");
  }
  const bool sets_owner = Has(body.what, wire::SetField::Uid) || Has(body.what, wire::SetField::Gid);
  if (sets_owner && !request.session.may_name_owners) {
    return Status::Error(EPERM, "this session may not change owners");
  }
  const bool sets_size = Has(body.what, wire::SetField::Size);
  if (sets_size && body.size > kMaxFileBytes) {
    return Status::Error(EFBIG, "too large a file");
  }
  RETURN_IF_ERROR(HearOfFirst(request, body.ino, static_cast<FirstWrite>(body.first)));
  RETURN_IF_ERROR(AwaitFirstToChange(request, body.ino));
  Granting granting(coherence_.grants(), request.session);
  granting.Attributes(body.ino);
  bool has_acl = false;
  const auto attributes = request.receipt != nullptr && !request.receipt->partly ? request.Blocking([&] {
    has_acl = HasAcl(body.ino);
    return names_.GetAttr(body.ino);
  })
                                                                                 : SetInGate(request, body, has_acl);
  if (Has(body.what, wire::SetField::Mode) && has_acl) {
    coherence_.CountAllAsHolders(body.ino);
  }
  coherence_.Recall(request.session.id, {body.ino}, {});  // also when it failed: part of it may be done
  RETURN_IF_ERROR(attributes.status());
  return ReplyAttributes(*attributes, granting);
}

// Within the gate, which keeps the mode as it is.
Status FileService::NameMode(const Request& request, wire::SetT& body) {
  const bool clears_all = Has(body.what, wire::SetField::ClearPrivileges);
  const bool clears_group_id = Has(body.what, wire::SetField::ClearGroupId);
  if (!clears_all && !clears_group_id) {
    return Status::Ok();
  }
  ASSIGN_OR_RETURN(const auto now, request.Blocking([&] { return names_.GetAttr(body.ino); }));
  const bool sets_mode = Has(body.what, wire::SetField::Mode);
  const uint32_t before = (sets_mode ? body.mode : now.mode) & 07777;
  const uint32_t cleared = clears_all ? PermissionsWithoutPrivileges(before) : before;
  const uint32_t mode = clears_group_id ? cleared & ~uint32_t{S_ISGID} : cleared;
  if (sets_mode || mode != (now.mode & 07777)) {
    body.mode = mode;
    body.what |= static_cast<uint32_t>(wire::SetField::Mode);
  }
  body.what &= ~static_cast<uint32_t>(wire::SetField::ClearPrivileges | wire::SetField::ClearGroupId);
  return Status::Ok();
}

Result<metadata::Attributes> FileService::SetInGate(const Request& request, wire::SetT body, bool& has_acl) {
  const InodeRef inode = inodes_.Get(body.ino);
  const bool sets_size = Has(body.what, wire::SetField::Size);
  ShrunkFile shrunk(coherence_, *inode, request.session.id);
  ASSIGN_OR_RETURN(GateHold hold, sets_size ? EnterToChange(request, *inode, GateMode::kExclusive)
                                            : GateHold::Enter(*inode, GateMode::kExclusive, request.session));
  RETURN_IF_ERROR(NameMode(request, body));
  const bool only_size = body.what == static_cast<uint32_t>(wire::SetField::Size);
  const bool resizes = sets_size && request.receipt == nullptr;
  RETURN_IF_ERROR(request.Blocking([&] { return Reclaimer::WriteTimes(names_, *inode); }));
  if (resizes) {
    RETURN_IF_ERROR(EnsureLoaded(request, *inode));
    {
      MutexLock lock(inode->mutex);
      inode->Drop(request.session.id, body.dropped);
    }
    RETURN_IF_ERROR(Truncate(request, *inode, body.size, !only_size, shrunk));
  }
  ASSIGN_OR_RETURN(const auto attributes, request.Blocking([&] {
    const Nanoseconds now = Now();
    has_acl = Has(body.what, wire::SetField::Mode) && HasAcl(body.ino);
    return only_size ? names_.GetAttr(body.ino) : names_.SetAttr(body.ino, ChangeOf(body, now), now, request.stamp);
  }));
  {
    MutexLock lock(inode->mutex);
    inode->mode = attributes.mode;
    inode->mode_known = true;
    if (Has(body.what, wire::SetField::Atime) || Has(body.what, wire::SetField::AtimeNow)) {
      inode->atime = attributes.atime;
      inode->atime_dirty = false;
    }
    if (inode->loaded) {
      inode->SetTimes({.mtime = attributes.mtime, .ctime = attributes.ctime});
    }
  }
  hold.Leave();
  reclaimer_.NoteChange();
  if (sets_size) {
    coherence_.DropPages(*inode, request.session.id);
  }
  return attributes;
}

Result<Bytes> FileService::Stat(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Inode>(request.call.body()));
  const FileSystemStatus space = WithinQuota(request, body.ino, Space());
  wire::VolumeSpaceT reply;
  reply.capacity = space.capacity_bytes;
  reply.free = space.free_bytes;
  reply.inodes_used = space.inodes_used;
  reply.inodes_free = space.inodes_free;
  return Encode<wire::VolumeSpace>(reply);
}

}  // namespace termfs::fs::server
