// SPDX-License-Identifier: Apache-2.0
//
// The keys of the store. The first byte is the type; numbers are big-endian, 64 bits unless noted.
//
//   'S'                              superblock
//   'N'                              first inode number not yet given out in a block of numbers
//   'C' shard:8                      a part of the number of inodes, sharded so that creators seldom meet; the rest is
//                                    in 'Q', and goes here before one of those is deleted
//   'R'                              claimed by whoever moves a directory to another parent
//   'I' inode                        inode
//   'D' directory, hash, name        dentry
//   'E' inode, file page             extent
//   'X' inode, name                  extended attribute
//   'O' inode                        orphan; kNameable when it was made without a name and may get one
//   'T' inode                        unfinished truncation
//   'A' inode                        end of the space, in file pages, that was allocated ahead of the file's growth
//   'Z' inode                        cut within a page: the inode says from where
//   'G' server:32, group             bitmap of an allocation group
//   'P' server:32, region page       pending-free range
//   'L' client                       a client that has, or had, a session and has not said goodbye
//   'Q' client, slot:32              receipt of the last marked request of the client's slot
//   'U' directory                    quota of the tree below it: limits and what is in use
//
// Guards (see key_value_store.h): 'I' guards 'D', 'E', 'X', 'O', 'T', 'A' and 'Z' of its inode; 'R' which 'U' there
// are, but for their end.
#pragma once

#include <string>
#include <string_view>

#include "base/page.h"
#include "base/result.h"
#include "metadata/coding.h"
#include "metadata/types.h"

namespace termfs::metadata {

inline std::string SuperblockKey() { return "S"; }
inline std::string NextInodeKey() { return "N"; }
inline std::string InodeCountKey(uint8_t shard) { return Encoder('C').U8(shard).Take(); }
inline std::string MoveDirectoryKey() { return "R"; }
inline std::string InodeKey(InodeNumber ino) { return Encoder('I').U64(ino).Take(); }
inline std::string DentryKey(InodeNumber dir, uint64_t hash, std::string_view name) {
  return Encoder('D').U64(dir).U64(hash).Bytes(name).Take();
}
inline std::string ExtentKey(InodeNumber ino, uint64_t file_page) {
  return Encoder('E').U64(ino).U64(file_page).Take();
}
inline std::string XattrKey(InodeNumber ino, std::string_view name) { return Encoder('X').U64(ino).Bytes(name).Take(); }
inline std::string OrphanKey(InodeNumber ino) { return Encoder('O').U64(ino).Take(); }
inline std::string TruncationKey(InodeNumber ino) { return Encoder('T').U64(ino).Take(); }
inline std::string AheadKey(InodeNumber ino) { return Encoder('A').U64(ino).Take(); }
inline std::string CutKey(InodeNumber ino) { return Encoder('Z').U64(ino).Take(); }
inline std::string GroupKey(uint32_t server, uint64_t group) { return Encoder('G').U32(server).U64(group).Take(); }
inline std::string PendingKey(uint32_t server, PageIndex page) {
  return Encoder('P').U32(server).U64(page.value).Take();
}
inline std::string ClientKey(ClientNumber client) { return Encoder('L').U64(client).Take(); }
inline std::string ReceiptKey(ClientNumber client, uint32_t slot) { return Encoder('Q').U64(client).U32(slot).Take(); }
inline std::string QuotaKey(ProjectNumber project) { return Encoder('U').U64(project).Take(); }
// From the key of an extent. EIO: not one.
inline Result<uint64_t> FilePageOfExtentKey(std::string_view key) {
  Decoder decoder(key);
  decoder.Bytes(1 + sizeof(InodeNumber));
  const uint64_t page = decoder.U64();
  if (!decoder.Finished()) {
    return Status::Error(EIO, "extent: damaged key, run termfs fsck");
  }
  return page;
}
// How many bytes a key has in common with all that a scan for its file, or for the hash of its name, finds: what
// filters know of it besides the whole. 0: its kind is not scanned so.
inline size_t ScanPrefix(std::string_view key) {
  constexpr size_t kOfInode = 1 + sizeof(InodeNumber);
  constexpr size_t kOfHash = kOfInode + sizeof(uint64_t);
  const char type = key.empty() ? '\0' : key.front();
  const size_t length = type == 'D' ? kOfHash : type == 'E' || type == 'X' ? kOfInode : 0;
  return key.size() < length ? 0 : length;
}
// The end of all keys that begin with the byte `type`.
inline std::string EndOfType(char type) { return std::string(1, static_cast<char>(type + 1)); }

}  // namespace termfs::metadata
