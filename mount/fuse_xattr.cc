// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <string_view>

#include "mount/caller_capabilities.h"
#include "mount/errno.h"
#include "mount/front_end.h"
#include "mount/fuse_operations.h"

namespace termfs::mount {
namespace {

constexpr std::string_view kTrusted = "trusted.";
constexpr std::string_view kAccessAcl = "system.posix_acl_access";
constexpr std::string_view kDefaultAcl = "system.posix_acl_default";

bool IsAcl(std::string_view name) { return name == kAccessAcl || name == kDefaultAcl; }

// Names without one of these prefixes have no meaning on Linux. Attributes that promise something to the kernel which
// termfs does not keep are refused rather than stored: file capabilities would survive a write.
Status Admit(fuse_req_t request, std::string_view name) {
  if (IsAcl(name) && FrontEnd::Of(request).acl()) {
    return Status::Ok();
  }
  for (const std::string_view prefix : {std::string_view("user."), kTrusted, std::string_view("security.")}) {
    if (name == prefix) {
      return Status::Error(EINVAL, "extended attribute without a name");
    }
    if (name.starts_with(prefix) && name != "security.capability") {
      return Status::Ok();
    }
  }
  return Status::Error(EOPNOTSUPP, "extended attribute " + std::string(name));
}

// Whether the thread that asks is an administrator. A request says no more than the user, and the thread, unless that
// is in a process namespace where the mount cannot see it.
bool ByAdministrator(fuse_req_t request) {
  const fuse_ctx& caller = *fuse_req_ctx(request);
  return caller.pid != 0 ? IsAdministrator(caller.pid) : caller.uid == 0;
}

// The kernel lets only CAP_SYS_ADMIN use these, but lists whatever it is told.
bool MayListTrusted(fuse_req_t request) { return ByAdministrator(request); }

// The value, or how long it is when the caller asks with no room.
void ReplyValue(fuse_req_t request, const char* value, size_t length, size_t room) {
  if (room == 0) {
    fuse_reply_xattr(request, length);
  } else if (length > room) {
    Reply(request, Status::Error(ERANGE, "extended attribute"));
  } else {
    fuse_reply_buf(request, value, length);
  }
}

}  // namespace

void OnSetXattr(fuse_req_t request, fuse_ino_t ino, const char* name, const char* value, size_t size, int flags) {
  const bool quota = std::string_view(name) == fs::kQuotaXattr;
  Status status = quota ? Status::Ok() : Admit(request, name);
  if (quota && !ByAdministrator(request)) {
    status = Status::Error(EPERM, "only an administrator sets quotas");
  }
  if (!status.ok()) {
    return Reply(request, status);
  }
  const auto loses = std::string_view(name) == kAccessAcl ? LosesGroupId(request, ino) : Result<bool>(false);
  if (!loses.ok()) {
    return Reply(request, loses.status());
  }
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(value), size);
  FrontEnd& front = FrontEnd::Of(request);
  status = front.file_system().SetXattr(FrontEnd::lane(), ino, name, bytes, flags, *loses);
  if (front.Removed(ino, status)) {
    status = Status::Error(ENOENT, "the directory has been removed");
  }
  Reply(request, status.ok() ? front.KeepAttributes(ino) : status);
}

void OnGetXattr(fuse_req_t request, fuse_ino_t ino, const char* name, size_t size) {
  FrontEnd& front = FrontEnd::Of(request);
  if (ino == fs::kRootInode && std::string_view(name) == kDescriptionXattr) {
    const std::string text = front.Describe(fuse_req_ctx(request)->uid);
    return ReplyValue(request, text.data(), text.size(), size);
  }
  if (const Status admitted = Admit(request, name); !admitted.ok() && std::string_view(name) != fs::kQuotaXattr) {
    return Reply(request, admitted);
  }
  const auto value = front.file_system().GetXattr(FrontEnd::lane(), ino, name);
  if (front.Removed(ino, value.status())) {
    return Reply(request, Status::Error(ENODATA, "the directory has been removed"));
  }
  if (!value.ok()) {
    return Reply(request, value.status());
  }
  ReplyValue(request, reinterpret_cast<const char*>(value->data()), value->size(), size);
}

void OnListXattr(fuse_req_t request, fuse_ino_t ino, size_t size) {
  FrontEnd& front = FrontEnd::Of(request);
  const auto names = front.file_system().ListXattr(FrontEnd::lane(), ino);
  if (front.Removed(ino, names.status())) {
    return ReplyValue(request, "", 0, size);
  }
  if (!names.ok()) {
    return Reply(request, names.status());
  }
  const auto trusted = [](const std::string& name) { return name.starts_with(kTrusted); };
  const bool all = !std::any_of(names->begin(), names->end(), trusted) || MayListTrusted(request);
  std::string list;
  for (const std::string& name : *names) {
    if (all || !trusted(name)) {
      list.append(name).push_back('\0');
    }
  }
  ReplyValue(request, list.data(), list.size(), size);
}

void OnRemoveXattr(fuse_req_t request, fuse_ino_t ino, const char* name) {
  FrontEnd& front = FrontEnd::Of(request);
  Status status = Admit(request, name);
  if (status.ok()) {
    status = front.file_system().RemoveXattr(FrontEnd::lane(), ino, name);
  }
  if (front.Removed(ino, status)) {
    status = Status::Error(ENODATA, "the directory has been removed");
  }
  if (status.ok()) {
    status = front.KeepAttributes(ino);
  }
  if (status.code() == ENODATA && IsAcl(name)) {
    status = Status::Ok();  // as Linux has it: there is none now
  }
  Reply(request, status);
}

}  // namespace termfs::mount
