// SPDX-License-Identifier: Apache-2.0
//
// The values of the store, and their bytes. Every value begins with a version byte; each Decode refuses (EIO) an
// unknown version, missing or surplus bytes, and fields that no Encode writes.
//
// Thread-safety: values and free functions.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "metadata/namespace.h"
#include "metadata/types.h"

namespace termfs::metadata {

inline constexpr uint32_t kFormatVersion = 1;
inline constexpr uint64_t kNoTrim = std::numeric_limits<uint64_t>::max();

struct InodeRecord {
  Attributes attributes;
  // Of a directory: the one it is in, the root's is itself.
  InodeNumber parent = 0;
  // Extents from this file page on are left over from a truncation and not part of the file; kNoTrim: none.
  uint64_t trim_page = kNoTrim;
  uint32_t xattr_bytes = 0;   // all names, each with a NUL
  ProjectNumber project = 0;  // the quota tree that it counts to
  std::string symlink_target;

  // The project of a directory that may take it as an entry. The root of a quota tree is in a directory outside of it.
  ProjectNumber project_around() const { return project == attributes.ino ? 0 : project; }
};

struct Dentry {
  InodeNumber ino = 0;
  FileType type = FileType::kRegular;
  uint8_t index = 0;  // among the names of the directory with the same hash; part of the cursor
};

std::string EncodeSuperblock(const Superblock& superblock);
Result<Superblock> DecodeSuperblock(std::string_view bytes);

std::string EncodeInode(const InodeRecord& inode);
Result<InodeRecord> DecodeInode(InodeNumber ino, std::string_view bytes);

std::string EncodeDentry(const Dentry& dentry);
Result<Dentry> DecodeDentry(std::string_view bytes);

// Extent.file_page is in the key and passed to Decode.
std::string EncodeExtent(const Extent& extent);
Result<Extent> DecodeExtent(uint64_t file_page, std::string_view bytes);

// One number: next inode, inode count, length of a pending range.
std::string EncodeNumber(uint64_t number);
Result<uint64_t> DecodeNumber(std::string_view bytes);

// ClientRecord.client is in the key and passed to Decode.
std::string EncodeClient(const ClientRecord& client);
Result<ClientRecord> DecodeClient(ClientNumber client, std::string_view bytes);

std::string EncodeReceipt(const Receipt& receipt);
Result<Receipt> DecodeReceipt(std::string_view bytes);

// Quota.project is in the key and passed to Decode.
std::string EncodeQuota(const Quota& quota);
Result<Quota> DecodeQuota(ProjectNumber project, std::string_view bytes);

// Bytes as they are: the value of an extended attribute; none for truncation, and for an orphan unless it
// is kNameable.
inline constexpr std::string_view kNameable = "nameable";
std::string EncodeBytes(std::string_view payload);
Result<std::string> DecodeBytes(std::string_view bytes);

}  // namespace termfs::metadata
