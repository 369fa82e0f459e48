// SPDX-License-Identifier: Apache-2.0
#include "metadata/records.h"

#include "metadata/coding.h"

namespace termfs::metadata {

namespace {

constexpr uint8_t kValueVersion = 1;
// The versions of an inode: kValueVersion, or these bits. What a bit stands for follows the fixed fields, in this
// order.
constexpr uint8_t kInodeOfProject = 2;  // it is in a quota tree
constexpr uint8_t kInodeAhead = 4;      // it has space that was allocated ahead
constexpr uint8_t kInodeCut = 8;        // it was cut within a page
constexpr uint8_t kClientCaches = 1;    // bits of one byte
constexpr uint8_t kClientExpelled = 2;
constexpr std::string_view kMagic = "termfsmd";

Status Damaged(const char* what) { return Status::Error(EIO, std::string(what) + ": damaged record, run termfs fsck"); }

// Without it nothing can be checked either.
Status DamagedSuperblock() {
  return Status::Error(EUCLEAN, "the superblock is damaged: restore the volume's directory from a backup");
}

bool IsFileType(uint8_t type) {
  switch (static_cast<FileType>(type)) {
    case FileType::kFifo:
    case FileType::kCharacter:
    case FileType::kDirectory:
    case FileType::kBlock:
    case FileType::kRegular:
    case FileType::kSymlink:
    case FileType::kSocket:
      return true;
  }
  return false;
}

Encoder Value() { return Encoder(kValueVersion); }

// A decoder behind the version byte; of an unknown version nothing decodes.
Decoder Open(std::string_view bytes, uint8_t version = kValueVersion) {
  Decoder decoder(bytes);
  if (decoder.U8() != version) {
    Decoder nothing("");
    nothing.U8();
    return nothing;
  }
  return decoder;
}

uint8_t VersionOf(const InodeRecord& inode) {
  const Attributes& a = inode.attributes;
  const uint8_t more =
      (inode.project != 0 ? kInodeOfProject : 0) | (a.ahead_end != 0 ? kInodeAhead : 0) | (a.cut ? kInodeCut : 0);
  return more == 0 ? kValueVersion : more;
}

uint64_t Count(Nanoseconds time) { return static_cast<uint64_t>(time.count()); }
Nanoseconds Time(uint64_t count) { return Nanoseconds(static_cast<int64_t>(count)); }

}  // namespace

// The version and the feature masks come first and never move, so that any program can tell why it cannot go on.
std::string EncodeSuperblock(const Superblock& s) {
  return Value()
      .Bytes(kMagic)
      .U32(s.format_version)
      .U64(s.compatible)
      .U64(s.read_only_compatible)
      .U64(s.incompatible)
      .Bytes({reinterpret_cast<const char*>(s.uuid.data()), s.uuid.size()})
      .U64(s.capacity_pages)
      .U32(s.region_server)
      .U32(s.name_hash_bits)
      .U64(Count(s.created))
      .Take();
}

Result<Superblock> DecodeSuperblock(std::string_view bytes) {
  Decoder d(bytes);
  d.U8();  // what it guards is the format version's to say here
  Superblock s;
  if (d.Bytes(kMagic.size()) != kMagic) {
    return Status::Error(EPROTONOSUPPORT, "the metadata directory holds no termfs volume");
  }
  s.format_version = d.U32();
  s.compatible = d.U64();
  s.read_only_compatible = d.U64();
  s.incompatible = d.U64();
  if (!d.ok()) {
    return DamagedSuperblock();
  }
  if (s.format_version != kFormatVersion) {
    return Status::Error(EPROTONOSUPPORT, "volume has format version " + std::to_string(s.format_version) +
                                              ", this program knows version " + std::to_string(kFormatVersion) +
                                              ": use the termfs that made it, or a newer one");
  }
  if (const uint64_t unknown = s.incompatible & ~kKnownIncompatible; unknown != 0 || s.read_only_compatible != 0) {
    char text[120];
    snprintf(text, sizeof(text), "volume has features unknown to this program (incompat %#llx, ro-compat %#llx)",
             static_cast<unsigned long long>(unknown), static_cast<unsigned long long>(s.read_only_compatible));
    return Status::Error(EPROTONOSUPPORT, std::string(text) + ": use a newer termfs");
  }
  const std::string_view uuid = d.Bytes(s.uuid.size());
  uuid.copy(reinterpret_cast<char*>(s.uuid.data()), uuid.size());
  s.capacity_pages = d.U64();
  s.region_server = d.U32();
  s.name_hash_bits = d.U32();
  s.created = Time(d.U64());
  if (!d.Finished() || s.capacity_pages == 0 || s.name_hash_bits < 1 || s.name_hash_bits > 55) {
    return DamagedSuperblock();
  }
  return s;
}

std::string EncodeInode(const InodeRecord& inode) {
  const Attributes& a = inode.attributes;
  Encoder encoder(VersionOf(inode));
  encoder.U32(a.mode)
      .U32(a.nlink)
      .U32(a.uid)
      .U32(a.gid)
      .U64(a.generation)
      .U64(a.rdev)
      .U64(a.size)
      .U64(a.blocks)
      .U64(Count(a.atime))
      .U64(Count(a.mtime))
      .U64(Count(a.ctime))
      .U64(Count(a.btime))
      .U64(inode.parent)
      .U64(inode.trim_page)
      .U32(inode.xattr_bytes);
  if (inode.project != 0) {
    encoder.U64(inode.project);
  }
  if (a.ahead_end != 0) {
    encoder.U64(a.ahead_end);
  }
  if (a.cut) {
    encoder.U64(a.cut.from).U64(a.cut.id);
  }
  return encoder.Bytes(inode.symlink_target).Take();
}

Result<InodeRecord> DecodeInode(InodeNumber ino, std::string_view bytes) {
  const uint8_t version = bytes.empty() ? 0 : static_cast<uint8_t>(bytes[0]);
  constexpr uint8_t kMore = kInodeOfProject | kInodeAhead | kInodeCut;
  const uint8_t more = (version & ~kMore) == 0 ? version : 0;
  const bool of_project = (more & kInodeOfProject) != 0;
  const bool has_ahead = (more & kInodeAhead) != 0;
  const bool has_cut = (more & kInodeCut) != 0;
  Decoder d = Open(bytes, more != 0 ? more : kValueVersion);
  InodeRecord inode;
  Attributes& a = inode.attributes;
  a.ino = ino;
  a.mode = d.U32();
  a.nlink = d.U32();
  a.uid = d.U32();
  a.gid = d.U32();
  a.generation = d.U64();
  a.rdev = d.U64();
  a.size = d.U64();
  a.blocks = d.U64();
  a.atime = Time(d.U64());
  a.mtime = Time(d.U64());
  a.ctime = Time(d.U64());
  a.btime = Time(d.U64());
  inode.parent = d.U64();
  inode.trim_page = d.U64();
  inode.xattr_bytes = d.U32();
  a.no_xattrs.known = inode.xattr_bytes == 0;
  inode.project = of_project ? d.U64() : 0;
  a.ahead_end = has_ahead ? d.U64() : 0;
  if (has_cut) {
    a.cut.from = d.U64();
    a.cut.id = d.U64();
  }
  inode.symlink_target = d.Rest();
  const bool symlink = a.type() == FileType::kSymlink;
  if (!d.Finished() || !IsFileType(static_cast<uint8_t>(a.type())) || symlink == inode.symlink_target.empty() ||
      of_project != (inode.project != 0) || has_ahead != (a.ahead_end != 0) || has_cut != static_cast<bool>(a.cut) ||
      (has_cut && a.cut.from % kPageSize == 0)) {
    return Damaged("inode");
  }
  return inode;
}

std::string EncodeDentry(const Dentry& dentry) {
  return Value().U64(dentry.ino).U8(static_cast<uint8_t>(dentry.type)).U8(dentry.index).Take();
}

Result<Dentry> DecodeDentry(std::string_view bytes) {
  Decoder d = Open(bytes);
  const InodeNumber ino = d.U64();
  const uint8_t type = d.U8();
  const uint8_t index = d.U8();
  if (!d.Finished() || !IsFileType(type)) {
    return Damaged("directory entry");
  }
  return Dentry{ino, static_cast<FileType>(type), index};
}

std::string EncodeExtent(const Extent& extent) {
  return Value().U64(extent.pages).U32(extent.server).U64(extent.region_page.value).Take();
}

Result<Extent> DecodeExtent(uint64_t file_page, std::string_view bytes) {
  Decoder d = Open(bytes);
  Extent extent;
  extent.file_page = file_page;
  extent.pages = d.U64();
  extent.server = d.U32();
  extent.region_page.value = d.U64();
  constexpr uint64_t kLimit = uint64_t{1} << 52;  // pages; so that no sum below overflows
  if (!d.Finished() || extent.pages == 0 || extent.pages > kLimit || extent.region_page.value > kLimit ||
      file_page > kLimit) {
    return Damaged("extent");
  }
  return extent;
}

std::string EncodeNumber(uint64_t number) { return Value().U64(number).Take(); }

Result<uint64_t> DecodeNumber(std::string_view bytes) {
  Decoder d = Open(bytes);
  const uint64_t number = d.U64();
  if (!d.Finished()) {
    return Damaged("number");
  }
  return number;
}

std::string EncodeClient(const ClientRecord& client) {
  const int facts = (client.caches ? kClientCaches : 0) | (client.expelled ? kClientExpelled : 0);
  return Value()
      .U32(client.reconnect_seconds)
      .U32(client.pid)
      .U64(client.started)
      .U8(static_cast<uint8_t>(facts))
      .Take();
}

Result<ClientRecord> DecodeClient(ClientNumber client, std::string_view bytes) {
  Decoder d = Open(bytes);
  ClientRecord record{.client = client};
  record.reconnect_seconds = d.U32();
  record.pid = d.U32();
  record.started = d.U64();
  // Records that were written before there were grants end here.
  const uint8_t facts = d.Finished() ? 0 : d.U8();
  record.caches = (facts & kClientCaches) != 0;
  record.expelled = (facts & kClientExpelled) != 0;
  if (!d.Finished() || facts > (kClientCaches | kClientExpelled)) {
    return Damaged("client");
  }
  return record;
}

std::string EncodeReceipt(const Receipt& receipt) {
  return Value()
      .U64(receipt.sequence)
      .U64(receipt.ino)
      .U64(receipt.offset)
      .U8(receipt.partly ? 1 : 0)
      .U64(static_cast<uint64_t>(receipt.inodes))
      .Take();
}

Result<Receipt> DecodeReceipt(std::string_view bytes) {
  Decoder d = Open(bytes);
  Receipt receipt;
  receipt.sequence = d.U64();
  receipt.ino = d.U64();
  receipt.offset = d.U64();
  const uint8_t partly = d.U8();
  // Records that were written before inodes were counted here end now.
  receipt.inodes = d.Finished() ? 0 : static_cast<int64_t>(d.U64());
  if (!d.Finished() || receipt.sequence == 0 || partly > 1) {
    return Damaged("receipt");
  }
  receipt.partly = partly != 0;
  return receipt;
}

std::string EncodeQuota(const Quota& quota) {
  return Value()
      .U64(quota.limits.bytes)
      .U64(quota.limits.inodes)
      .U64(quota.pages)
      .U64(quota.inodes)
      .U8(quota.counting ? 1 : 0)
      .Take();
}

Result<Quota> DecodeQuota(ProjectNumber project, std::string_view bytes) {
  Decoder d = Open(bytes);
  Quota quota{.project = project};
  quota.limits.bytes = d.U64();
  quota.limits.inodes = d.U64();
  quota.pages = d.U64();
  quota.inodes = d.U64();
  const uint8_t counting = d.U8();
  quota.counting = counting == 1;
  if (!d.Finished() || counting > 1) {
    return Damaged("quota");
  }
  return quota;
}

std::string EncodeBytes(std::string_view payload) { return Value().Bytes(payload).Take(); }

Result<std::string> DecodeBytes(std::string_view bytes) {
  Decoder d = Open(bytes);
  std::string payload(d.Rest());
  if (!d.ok()) {
    return Damaged("value");
  }
  return payload;
}

}  // namespace termfs::metadata
