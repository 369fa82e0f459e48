// SPDX-License-Identifier: Apache-2.0
#include <sys/xattr.h>

#include "fs/proto/codec.h"
#include "fs/server/service.h"
#include "metadata/acl.h"

namespace termfs::fs::server {

Result<Bytes> FileService::SetXattr(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Xattr>(request.call.body()));
  auto mode = metadata::XattrMode::kEither;
  if (body.flags == XATTR_CREATE) {
    mode = metadata::XattrMode::kCreate;
  } else if (body.flags == XATTR_REPLACE) {
    mode = metadata::XattrMode::kReplace;
  } else if (body.flags == (XATTR_CREATE | XATTR_REPLACE)) {
    mode = metadata::XattrMode::kBoth;
  } else if (body.flags != 0) {
    return Status::Error(EINVAL, "bad flags");
  }
  ASSIGN_OR_RETURN(const std::string value, PullString(request, kMaxXattr));
  if (body.name == kQuotaXattr) {
    RETURN_IF_ERROR(SetQuota(request, body.ino, value));
    return Bytes{};
  }
  if (request.receipt != nullptr) {
    RecallXattr(request, body);
    return Bytes{};
  }
  const Nanoseconds now = Now();
  const auto set = [&] {
    return names_.SetXattr(body.ino, body.name, value, mode, now, request.stamp, body.outside_group);
  };
  if (body.name == metadata::kAccessAcl) {
    RETURN_IF_ERROR(ChangeMode(request, body.ino, set));
  } else {
    RETURN_IF_ERROR(request.Blocking(set));
    NoteChanged(body.ino, now);
  }
  RecallXattr(request, body);
  return Bytes{};
}

void FileService::RecallXattr(const Request& request, const wire::XattrT& body) {
  if (body.name == metadata::kAccessAcl || body.name == metadata::kDefaultAcl) {
    coherence_.CountAllAsHolders(body.ino);
  }
  coherence_.Recall(request.session.id, {body.ino}, {});
}

bool FileService::HasAcl(uint64_t ino) {
  const int code = names_.GetXattr(ino, metadata::kAccessAcl).status().code();
  return code != ENODATA && code != ESTALE;  // the latter: it has just been removed
}

// The gate keeps the mode as it is for those within, who may clear bits of it.
Status FileService::ChangeMode(const Request& request, uint64_t ino, const std::function<Status()>& change) {
  const InodeRef inode = inodes_.Get(ino);
  ASSIGN_OR_RETURN(const GateHold hold, GateHold::Enter(*inode, GateMode::kExclusive, request.session));
  ASSIGN_OR_RETURN(const auto attributes, request.Blocking([&]() -> Result<metadata::Attributes> {
    RETURN_IF_ERROR(change());
    return names_.GetAttr(ino);
  }));
  NoteChanged(ino, attributes.ctime);
  MutexLock lock(inode->mutex);
  inode->mode = attributes.mode;
  inode->mode_known = true;
  return Status::Ok();
}

Result<Bytes> FileService::GetXattr(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Xattr>(request.call.body()));
  ASSIGN_OR_RETURN(const auto value, body.name == kQuotaXattr ? GetQuota(request, body.ino) : request.Blocking([&] {
    return names_.GetXattr(body.ino, body.name);
  }));
  if (!value.empty()) {
    RETURN_IF_ERROR(request.call.PushBulk(std::as_bytes(std::span(value))));
  }
  return Bytes{};
}

Result<Bytes> FileService::ListXattr(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Inode>(request.call.body()));
  ASSIGN_OR_RETURN(const auto names, request.Blocking([&] { return names_.ListXattr(body.ino); }));
  std::string list;
  for (const std::string& name : names) {
    list += name;
    list += '\0';
  }
  if (!list.empty()) {
    RETURN_IF_ERROR(request.call.PushBulk(std::as_bytes(std::span(list))));
  }
  return Bytes{};
}

Result<Bytes> FileService::RemoveXattr(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Xattr>(request.call.body()));
  if (request.receipt != nullptr) {
    RecallXattr(request, body);
    return Bytes{};
  }
  const Nanoseconds now = Now();
  RETURN_IF_ERROR(request.Blocking([&] { return names_.RemoveXattr(body.ino, body.name, now, request.stamp); }));
  NoteChanged(body.ino, now);
  RecallXattr(request, body);
  return Bytes{};
}

}  // namespace termfs::fs::server
