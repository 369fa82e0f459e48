// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "fs/client/volume_client.h"
#include "fs/proto/codec.h"

namespace termfs::fs::client {

namespace {

std::vector<std::byte> EncodeInode(uint64_t ino) {
  wire::InodeT body;
  body.ino = ino;
  return Encode<wire::Inode>(body);
}

std::vector<std::byte> EncodeXattr(uint64_t ino, std::string_view name, int flags, bool outside_group = false) {
  wire::XattrT body;
  body.ino = ino;
  body.name = name;
  body.flags = flags;
  body.outside_group = outside_group;
  return Encode<wire::Xattr>(body);
}

wire::SetT ToWire(uint64_t ino, const SetAttributes& what) {
  wire::SetT body;
  body.ino = ino;
  const auto set = [&body](bool given, wire::SetField field) { body.what |= given ? static_cast<uint32_t>(field) : 0; };
  set(what.mode.has_value(), wire::SetField::Mode);
  set(what.uid.has_value(), wire::SetField::Uid);
  set(what.gid.has_value(), wire::SetField::Gid);
  set(what.size.has_value(), wire::SetField::Size);
  set(what.atime.has_value(), wire::SetField::Atime);
  set(what.mtime.has_value(), wire::SetField::Mtime);
  set(what.atime_now, wire::SetField::AtimeNow);
  set(what.mtime_now, wire::SetField::MtimeNow);
  set(what.clears_privileges, wire::SetField::ClearPrivileges);
  set(what.clears_group_id, wire::SetField::ClearGroupId);
  body.mode = what.mode.value_or(0);
  body.uid = what.uid.value_or(0);
  body.gid = what.gid.value_or(0);
  body.size = what.size.value_or(0);
  body.atime = what.atime.value_or(0);
  body.mtime = what.mtime.value_or(0);
  return body;
}

// Names of attributes are at most 255 bytes, as the server has them.
Status CheckXattrName(std::string_view name) {
  return name.empty() || name.size() > kMaxName ? Status::Error(ERANGE, "attribute name") : Status::Ok();
}

}  // namespace

Result<Attributes> VolumeClient::GetAttributes(Lane& lane, uint64_t ino) {
  if (const auto brought = changes_.Take(ino); brought.has_value() && Of(lane).grants().MayAnswer(*brought)) {
    return brought->attributes;
  }
  auto attributes = CallForAttributes(lane, kFsGetAttributes, EncodeInode(ino));
  if (const auto end = Of(lane).grants().AttributesEnd(); attributes.ok() && end.has_value()) {
    known_names_.Renewed(ino, *end);
  }
  return attributes;
}

Result<Attributes> VolumeClient::Set(Lane& lane, uint64_t ino, const SetAttributes& what, OpenFile* file) {
  RETURN_IF_ERROR(CheckUsable(file));
  wire::SetT body = ToWire(ino, what);
  std::shared_ptr<InodeCache> cache = file != nullptr ? file->cache : inodes_.Find(ino);
  const OwnChange own(*this, lane, ino);
  if (what.size.has_value() && cache != nullptr) {
    body.dropped = cache->Drop();
  }
  body.first = static_cast<uint8_t>(first_writes_.Forgo(ino));
  const DirectoryChanges::Change change(changes_, ino);
  auto attributes = CallForAttributes(lane, kFsSet, Encode<wire::Set>(body), {}, kOnce);
  if (!attributes.ok()) {
    AfterFailure(lane, attributes.status(), cache);
  }
  return attributes;
}

Status VolumeClient::SetXattr(Lane& lane, uint64_t ino, std::string_view name, std::span<const std::byte> value,
                              int flags, bool outside_group) {
  RETURN_IF_ERROR(CheckXattrName(name));
  if (value.size() > kMaxXattr) {
    return Status::Error(E2BIG, "attribute value");
  }
  const OwnChange own(*this, lane, ino);  // before the lane's buffer is used
  ASSIGN_OR_RETURN(const auto in, ToBuffer(lane, value));
  return ChangeXattr(lane, kFsSetXattr, ino, EncodeXattr(ino, name, flags, outside_group), in);
}

Status VolumeClient::ChangeXattr(Lane& lane, Opcode opcode, uint64_t ino, std::span<const std::byte> body,
                                 std::span<std::byte> in) {
  const DirectoryChanges::Change change(changes_, ino);
  bare_inodes_.BeginChange(ino);
  Status changed = Call(lane, opcode, body, in, {}, kOnce).status();
  kept_.NoteOwnChange();
  if (GivenUp(changed)) {
    Of(lane).AfterGivenUp([this, ino](const auto&) {
      kept_.NoteOwnChange();
      bare_inodes_.EndChange(ino);
    });
  } else {
    bare_inodes_.EndChange(ino);
  }
  return changed;
}

Result<std::vector<std::byte>> VolumeClient::GetXattr(Lane& lane, uint64_t ino, std::string_view name) {
  RETURN_IF_ERROR(CheckXattrName(name));
  if (name != kQuotaXattr && bare_inodes_.Contains(ino)) {
    return Status::Error(ENODATA, "no such attribute");
  }
  const std::span<std::byte> out = lane.buffer().first(kMaxXattr);
  ASSIGN_OR_RETURN(const CallReply reply, Call(lane, kFsGetXattr, EncodeXattr(ino, name, 0), {}, out));
  return std::vector<std::byte>(reply.out.begin(), reply.out.end());
}

Result<std::vector<std::string>> VolumeClient::ListXattr(Lane& lane, uint64_t ino) {
  if (bare_inodes_.Contains(ino)) {
    return std::vector<std::string>();
  }
  const std::span<std::byte> out = lane.buffer().first(kMaxXattr);
  ASSIGN_OR_RETURN(const CallReply reply, Call(lane, kFsListXattr, EncodeInode(ino), {}, out));
  std::vector<std::string> names;
  std::string_view list(reinterpret_cast<const char*>(reply.out.data()), reply.out.size());
  while (!list.empty()) {
    const size_t end = list.find('\0');
    if (end == 0 || end == std::string_view::npos) {
      return Status::Error(EBADMSG, "a malformed list of attributes");
    }
    names.emplace_back(list.substr(0, end));
    list.remove_prefix(end + 1);
  }
  return names;
}

Status VolumeClient::RemoveXattr(Lane& lane, uint64_t ino, std::string_view name) {
  RETURN_IF_ERROR(CheckXattrName(name));
  const OwnChange own(*this, lane, ino);
  return ChangeXattr(lane, kFsRemoveXattr, ino, EncodeXattr(ino, name, 0), {});
}

}  // namespace termfs::fs::client
