// SPDX-License-Identifier: Apache-2.0
#include <linux/fs.h>
#include <sys/stat.h>

#include <optional>

#include "fs/client/volume_client.h"
#include "fs/proto/codec.h"

namespace termfs::fs::client {

namespace {

constexpr uint64_t kAfterDots = 2;  // a listing's cursor

std::vector<std::byte> EncodeName(uint64_t parent, std::string_view name) {
  wire::NameT body;
  body.parent = parent;
  body.name = name;
  return Encode<wire::Name>(body);
}

std::vector<std::byte> EncodeMake(Caller who, uint64_t parent, std::string_view name, uint32_t mode, uint32_t rdev) {
  wire::MakeT body;
  body.parent = parent;
  body.name = name;
  body.mode = mode;
  body.rdev = rdev;
  body.uid = who.uid;
  body.gid = who.gid;
  body.umask = who.umask;
  return Encode<wire::Make>(body);
}

// What does not fit a message is longer than any name may be.
Status CheckName(std::string_view name) {
  return name.size() <= kMaxName ? Status::Ok() : Status::Error(ENAMETOOLONG, "name");
}

}  // namespace

Result<Attributes> VolumeClient::Lookup(Lane& lane, uint64_t parent, std::string_view name) {
  RETURN_IF_ERROR(CheckName(name));
  if (name != "." && name != ".." && known_names_.Lacks(parent, name)) {
    known_absent_.Add();
    Of(lane).grants().BeginRequest();  // nothing is granted
    return Status::Error(ENOENT, "no such name");
  }
  auto found = CallForAttributes(lane, kFsLookup, EncodeName(parent, name));
  Of(lane).grants().GrantedIn(parent);
  return found;
}

Result<Attributes> VolumeClient::MakeDirectory(Lane& lane, Caller who, uint64_t parent, std::string_view name,
                                               uint32_t mode) {
  RETURN_IF_ERROR(CheckName(name));
  auto made = CallForMade(lane, kFsMake, parent, name, EncodeMake(who, parent, name, S_IFDIR | (mode & 07777), 0));
  const auto end = Of(lane).grants().AttributesEnd();
  // Before it was granted others may have found it, and made something there: then it has changed since its birth.
  if (made.ok() && end.has_value() && made->mtime == made->btime) {
    known_names_.Made(made->ino, *end);
    // Meanwhile it may have been recalled, or another lane has found it, and is making something there.
    if (!Of(lane).grants().AttributesEnd().has_value() || !changes_.Settled(made->ino, Of(lane).grants().asked())) {
      known_names_.Forget(made->ino);
    }
  }
  return made;
}

Result<Attributes> VolumeClient::MakeNode(Lane& lane, Caller who, uint64_t parent, std::string_view name, uint32_t mode,
                                          uint32_t rdev) {
  RETURN_IF_ERROR(CheckName(name));
  if (S_ISLNK(mode) || S_ISDIR(mode)) {
    return Status::Error(EINVAL, "mknod of a directory or symbolic link");
  }
  const uint32_t type = (mode & S_IFMT) == 0 ? S_IFREG : mode & S_IFMT;
  return CallForMade(lane, kFsMake, parent, name, EncodeMake(who, parent, name, type | (mode & 07777), rdev));
}

Result<Attributes> VolumeClient::Symlink(Lane& lane, Caller who, uint64_t parent, std::string_view name,
                                         std::string_view target) {
  RETURN_IF_ERROR(CheckName(name));
  if (target.empty()) {
    return Status::Error(ENOENT, "an empty target");
  }
  constexpr size_t kMaxTarget = 4095;
  if (target.size() > kMaxTarget) {
    return Status::Error(ENAMETOOLONG, "target");
  }
  ASSIGN_OR_RETURN(const auto in, ToBuffer(lane, std::as_bytes(std::span(target))));
  return CallForMade(lane, kFsMake, parent, name, EncodeMake(who, parent, name, S_IFLNK | 0777, 0), in);
}

Result<std::string> VolumeClient::ReadLink(Lane& lane, uint64_t ino) {
  wire::InodeT body;
  body.ino = ino;
  body.keeps_atime = !moves_times();
  const std::span<std::byte> out = lane.buffer().first(kPageSize);
  ASSIGN_OR_RETURN(const CallReply reply, Call(lane, kFsReadLink, Encode<wire::Inode>(body), {}, out));
  return std::string(reinterpret_cast<const char*>(reply.out.data()), reply.out.size());
}

Result<Attributes> VolumeClient::Link(Lane& lane, uint64_t ino, uint64_t new_parent, std::string_view new_name) {
  RETURN_IF_ERROR(CheckName(new_name));
  wire::LinkT body;
  body.ino = ino;
  body.parent = new_parent;
  body.name = new_name;
  const OwnChange own(*this, lane, ino);
  return CallForMade(lane, kFsLink, new_parent, new_name, Encode<wire::Link>(body));
}

Status VolumeClient::Unlink(Lane& lane, uint64_t parent, std::string_view name) {
  RETURN_IF_ERROR(CheckName(name));
  return CallToRemove(lane, kFsUnlink, parent, name, EncodeName(parent, name));
}

Status VolumeClient::RemoveDirectory(Lane& lane, uint64_t parent, std::string_view name) {
  RETURN_IF_ERROR(CheckName(name));
  Status removed = CallToRemove(lane, kFsRemoveDirectory, parent, name, EncodeName(parent, name));
  changes_.ForgetOthers(parent);
  return removed;
}

Status VolumeClient::Rename(Lane& lane, uint64_t parent, std::string_view name, uint64_t new_parent,
                            std::string_view new_name, uint32_t flags) {
  if ((flags & ~uint32_t{RENAME_NOREPLACE | RENAME_EXCHANGE}) != 0) {
    return Status::Error(EINVAL, "unknown rename flags");
  }
  wire::RenameT body;
  body.parent = parent;
  body.name = name;
  body.new_parent = new_parent;
  body.new_name = new_name;
  body.flags = flags;
  return CallToRename(lane, body);
}

Status VolumeClient::RenameLeavingWhiteout(Lane& lane, Caller who, uint64_t parent, std::string_view name,
                                           uint64_t new_parent, std::string_view new_name, uint32_t flags) {
  if ((flags & ~uint32_t{RENAME_NOREPLACE}) != 0) {
    return Status::Error(EINVAL, "rename flags that leave no whiteout");
  }
  wire::RenameT body;
  body.parent = parent;
  body.name = name;
  body.new_parent = new_parent;
  body.new_name = new_name;
  body.flags = flags | RENAME_WHITEOUT;
  body.uid = who.uid;
  body.gid = who.gid;
  return CallToRename(lane, body);
}

Status VolumeClient::CallToRename(Lane& lane, const wire::RenameT& body) {
  RETURN_IF_ERROR(CheckName(body.name));
  RETURN_IF_ERROR(CheckName(body.new_name));
  const DirectoryChanges::Change from(changes_, body.parent);
  const DirectoryChanges::Change to(changes_, body.new_parent);
  known_names_.WillAdd(body.parent, body.name);
  known_names_.WillAdd(body.new_parent, body.new_name);
  const auto reply = Call(lane, kFsRename, Encode<wire::Rename>(body), {}, {}, kOnce);
  Status renamed = reply.status();
  changes_.ForgetOthers(body.parent);
  kept_.NoteOwnChange();  // of what was moved
  if (GivenUp(renamed) && caches()) {
    Of(lane).AfterGivenUp([this, body](const auto&) {
      DropOwn(body.parent, body.name);
      DropOwn(body.new_parent, body.new_name);
    });
  }
  UnshareChanged(lane, reply);
  return renamed;
}

Result<std::vector<DirectoryEntry>> VolumeClient::ReadDirectory(Lane& lane, uint64_t ino, uint64_t cursor,
                                                                size_t max_bytes, bool plus) {
  const std::span<std::byte> buffer = Of(lane).before_places();
  // On the way an entry may take up to three times what the kernel counts for it.
  constexpr size_t kWireFactor = 3;
  const size_t counted = std::min(max_bytes, size_t{options_.max_io_bytes});
  const std::span<std::byte> out = buffer.first(std::min(buffer.size(), counted * kWireFactor + kPageSize));
  wire::ReadDirectoryT body;
  body.ino = ino;
  body.cursor = cursor;
  body.max_bytes = static_cast<uint32_t>(counted);
  body.plus = plus;
  body.keeps_atime = !moves_directory_times_.load(std::memory_order_relaxed);
  std::optional<DirectoryChanges::Change> change;  // of the time, by a listing's first part
  if (!body.keeps_atime && cursor < kAfterDots) {
    change.emplace(changes_, ino);
  }
  ASSIGN_OR_RETURN(const CallReply reply, Call(lane, kFsReadDirectory, Encode<wire::ReadDirectory>(body), {}, out));
  ASSIGN_OR_RETURN(const auto directory, Decode<wire::Directory>(reply.out));
  Of(lane).grants().Granted(directory.entry_ms, directory.attributes_ms);
  Of(lane).grants().GrantedIn(ino);
  std::vector<DirectoryEntry> entries;
  entries.reserve(directory.entries.size());
  for (const auto& entry : directory.entries) {
    if (entry->name.empty() || entry->name.size() > kMaxName || (plus && entry->attributes == nullptr)) {
      return Status::Error(EBADMSG, "a malformed directory entry");
    }
    entries.push_back({.name = std::move(entry->name),
                       .ino = entry->ino,
                       .type = entry->type,
                       .cursor = entry->cursor,
                       .attributes = plus ? FromWire(*entry->attributes) : Attributes{}});
    const DirectoryEntry& added = entries.back();
    if (plus && added.name != "." && added.name != "..") {  // which are granted nothing
      bare_inodes_.Seen(added.attributes, Of(lane).grants());
    }
  }
  return entries;
}

}  // namespace termfs::fs::client
