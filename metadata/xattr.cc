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

}  // namespace

Status Namespace::SetXattr(InodeNumber ino, std::string_view name, std::string_view value, XattrMode mode,
                           Nanoseconds now, const Stamp* stamp) {
  RETURN_IF_ERROR(CheckXattrName(name));
  if (value.size() > kMaxXattrValue) {
    return Status::Error(E2BIG, "value of an attribute: more than 64 KiB");
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
    if (!present) {
      if (inode->xattr_bytes + name.size() + 1 > kMaxXattrList) {
        return Status::Error(ENOSPC, "too many attributes");
      }
      inode->xattr_bytes += static_cast<uint32_t>(name.size() + 1);
    }
    RETURN_IF_ERROR(op.transaction().Grows());
    inode->attributes.Changed(now);
    return op.transaction().Put(key, EncodeBytes(value));
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
    inode->xattr_bytes -= static_cast<uint32_t>(name.size() + 1);
    inode->attributes.Changed(now);
    return op.transaction().Delete(key);
  });
}

}  // namespace termfs::metadata
