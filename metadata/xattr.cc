// SPDX-License-Identifier: Apache-2.0
#include "metadata/keys.h"
#include "metadata/namespace.h"
#include "metadata/operation.h"

namespace termfs::metadata {

namespace {

Status CheckXattrName(std::string_view name) {
  if (name.empty() || name.size() > kMaxName) {
    return Status::Error(ERANGE, "name of an attribute: 1 to 255 bytes");
  }
  return name.find('\0') == name.npos ? Status::Ok() : Status::Error(EINVAL, "name of an attribute: NUL in it");
}

Status NoData() { return Status::Error(ENODATA, "no such attribute"); }

Status PutXattr(Operation& op, InodeRecord& inode, std::string_view name, std::string_view value, bool present) {
  if (!present) {
    if (inode.xattr_bytes + name.size() + 1 > kMaxXattrList) {
      return Status::Error(ENOSPC, "too many attributes");
    }
    inode.xattr_bytes += static_cast<uint32_t>(name.size() + 1);
  }
  inode.attributes.no_xattrs.known = false;
  return op.transaction().Put(XattrKey(inode.attributes.ino, name), EncodeBytes(value));
}

Status DeleteXattr(Operation& op, InodeRecord& inode, std::string_view name) {
  inode.xattr_bytes -= static_cast<uint32_t>(name.size() + 1);
  return op.transaction().Delete(XattrKey(inode.attributes.ino, name));
}

// `present`: what is stored. ctime moves when anything changes.
Status SetAccess(Operation& op, InodeRecord& inode, const Acl& acl, std::optional<std::string_view> present,
                 bool outside_group, Nanoseconds now) {
  Attributes& a = inode.attributes;
  const uint32_t kept = outside_group ? a.mode & ~uint32_t{S_ISGID} : a.mode;
  const uint32_t mode = (kept & ~uint32_t{0777}) | acl.Mode();
  const auto wanted = acl.IsMinimal() ? std::nullopt : std::optional(EncodeBytes(acl.Encode()));
  if (mode != a.mode || wanted != present) {
    a.Changed(now);
  }
  a.mode = mode;
  if (!acl.IsMinimal()) {
    return PutXattr(op, inode, kAccessAcl, acl.Encode(), present.has_value());
  }
  return present.has_value() ? DeleteXattr(op, inode, kAccessAcl) : Status::Ok();
}

}  // namespace

Result<std::optional<Acl>> ReadAcl(Operation& op, const InodeRecord& inode, std::string_view name) {
  if (inode.xattr_bytes == 0) {
    return std::optional<Acl>();
  }
  ASSIGN_OR_RETURN(const auto present, op.transaction().Get(XattrKey(inode.attributes.ino, name)));
  if (!present) {
    return std::optional<Acl>();
  }
  ASSIGN_OR_RETURN(const std::string value, DecodeBytes(*present));
  ASSIGN_OR_RETURN(Acl acl, Acl::Decode(value));
  return std::optional(std::move(acl));
}

Status WriteAcl(Operation& op, InodeRecord& inode, std::string_view name, const Acl* acl) {
  bool present = false;
  if (inode.xattr_bytes != 0) {
    ASSIGN_OR_RETURN(const auto value, op.transaction().Get(XattrKey(inode.attributes.ino, name)));
    present = value.has_value();
  }
  if (acl != nullptr) {
    return PutXattr(op, inode, name, acl->Encode(), present);
  }
  return present ? DeleteXattr(op, inode, name) : Status::Ok();
}

Status Namespace::SetXattr(InodeNumber ino, std::string_view name, std::string_view value, XattrMode mode,
                           Nanoseconds now, const Stamp* stamp, bool outside_group) {
  RETURN_IF_ERROR(CheckXattrName(name));
  if (value.size() > kMaxXattrValue) {
    return Status::Error(E2BIG, "value of an attribute: more than 64 KiB");
  }
  std::optional<Acl> acl;
  if (name == kAccessAcl || name == kDefaultAcl) {
    ASSIGN_OR_RETURN(acl, Acl::Decode(value));
  }
  Receipt receipt;
  return Run(stamp, receipt, [&](Operation& op) -> Status {
    ASSIGN_OR_RETURN(InodeRecord* const inode, op.Claim(ino));
    const std::string key = XattrKey(ino, name);
    ASSIGN_OR_RETURN(const auto present, op.transaction().Get(key));
    if (present && (mode == XattrMode::kCreate || mode == XattrMode::kBoth)) {
      return Status::Error(EEXIST, "the attribute exists");
    }
    if (!present && (mode == XattrMode::kReplace || mode == XattrMode::kBoth)) {
      return NoData();
    }
    RETURN_IF_ERROR(op.transaction().Grows());
    if (acl.has_value() && name == kAccessAcl) {
      return SetAccess(op, *inode, *acl, present, outside_group, now);
    }
    inode->attributes.Changed(now);
    if (acl.has_value() && !inode->attributes.is_directory()) {
      return Status::Error(EACCES, "a default access control list of what is no directory");
    }
    return PutXattr(op, *inode, name, value, present.has_value());
  });
}

Result<std::string> Namespace::GetXattr(InodeNumber ino, std::string_view name) {
  RETURN_IF_ERROR(CheckXattrName(name));
  const std::unique_ptr<Reader> reader = store_.Snapshot();
  ASSIGN_OR_RETURN(const auto value, reader->Get(XattrKey(ino, name)));
  if (!value) {
    RETURN_IF_ERROR(ReadInode(*reader, ino).status());
    return NoData();
  }
  return DecodeBytes(*value);
}

Result<std::vector<std::string>> Namespace::ListXattr(InodeNumber ino) {
  const std::unique_ptr<Reader> reader = store_.Snapshot();
  ASSIGN_OR_RETURN(const InodeRecord inode, ReadInode(*reader, ino));
  std::vector<std::string> names;
  const std::string prefix = XattrKey(ino, "");
  std::string begin = prefix;
  // In portions: values come along, and may be big.
  constexpr size_t kPortion = 64;
  while (inode.xattr_bytes != 0) {
    ASSIGN_OR_RETURN(const auto pairs, reader->Scan(begin, XattrKey(ino + 1, ""), kPortion));
    for (const KeyValue& pair : pairs) {
      names.push_back(pair.key.substr(prefix.size()));
    }
    if (pairs.size() < kPortion) {
      break;
    }
    begin = pairs.back().key + '\0';
  }
  return names;
}

Status Namespace::RemoveXattr(InodeNumber ino, std::string_view name, Nanoseconds now, const Stamp* stamp) {
  RETURN_IF_ERROR(CheckXattrName(name));
  Receipt receipt;
  return Run(stamp, receipt, [&](Operation& op) -> Status {
    ASSIGN_OR_RETURN(InodeRecord* const inode, op.Claim(ino));
    const std::string key = XattrKey(ino, name);
    ASSIGN_OR_RETURN(const auto present, op.transaction().Get(key));
    if (!present) {
      return NoData();
    }
    op.transaction().Frees();
    inode->attributes.Changed(now);
    return DeleteXattr(op, *inode, name);
  });
}

}  // namespace termfs::metadata
