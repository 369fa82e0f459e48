// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "metadata/namespace.h"
#include "metadata/operation.h"

namespace termfs::metadata {

Result<Attributes> Namespace::SetAttr(InodeNumber ino, const AttributeChange& change, Nanoseconds now,
                                      const Stamp* stamp) {
  Attributes result;
  Receipt receipt;
  const Status status = Run(stamp, receipt, [&](Operation& op) -> Status {
    ASSIGN_OR_RETURN(InodeRecord* const inode, op.Claim(ino));
    Attributes& a = inode->attributes;
    if (change.mode) {
      a.mode = (a.mode & S_IFMT) | (*change.mode & 07777);
      ASSIGN_OR_RETURN(std::optional<Acl> acl, ReadAcl(op, *inode, kAccessAcl));
      if (acl.has_value()) {
        acl->SetMode(a.mode);
        RETURN_IF_ERROR(WriteAcl(op, *inode, kAccessAcl, &*acl));
      }
    }
    a.uid = change.uid.value_or(a.uid);
    a.gid = change.gid.value_or(a.gid);
    a.atime = change.atime.value_or(a.atime);
    a.mtime = change.mtime.value_or(a.mtime);
    a.Changed(now);
    result = a;
    return Status::Ok();
  });
  RETURN_IF_ERROR(status);
  return result;
}

Status Namespace::SetAccessTime(InodeNumber ino, Nanoseconds atime) {
  Receipt receipt;
  return Run(nullptr, receipt, [&](Operation& op) -> Status {
    ASSIGN_OR_RETURN(InodeRecord* const inode, op.Claim(ino));
    inode->attributes.atime = atime;
    return Status::Ok();
  });
}

Result<Attributes> Namespace::SetSizeAndTimes(InodeNumber ino, uint64_t size, SizeRule rule, Nanoseconds mtime,
                                              Nanoseconds ctime, const Stamp* stamp, uint64_t offset) {
  if (size > kMaxFileSize) {
    return Status::Error(EFBIG, "file size beyond the limit");
  }
  Attributes result;
  Receipt receipt{.offset = offset};
  const Status status = Run(stamp, receipt, [&](Operation& op) -> Status {
    ASSIGN_OR_RETURN(InodeRecord* const inode, op.Claim(ino));
    Attributes& a = inode->attributes;
    if (a.type() != FileType::kRegular) {
      return Status::Error(EINVAL, "not a regular file");
    }
    if (rule == SizeRule::kExact && size < a.size) {
      return Status::Error(EINVAL, "a file shrinks by truncation only");
    }
    a.size = std::max(a.size, size);
    a.mtime = mtime;
    a.Changed(ctime);
    result = a;
    return Status::Ok();
  });
  RETURN_IF_ERROR(status);
  return result;
}

}  // namespace termfs::metadata
