// SPDX-License-Identifier: Apache-2.0
//
// Entries are stored in the order of their names' hashes, and among equal hashes by name; cursors order equal hashes
// by index instead. So a group of equal hashes is read whole and sorted.
#include <algorithm>

#include "metadata/keys.h"
#include "metadata/namespace.h"
#include "metadata/operation.h"

namespace termfs::metadata {

namespace {

constexpr uint64_t kFirstCursor = uint64_t{1} << kIndexBits;  // no entry has a smaller one
constexpr uint64_t kEndHash = uint64_t{1} << 55;

Result<DirectoryEntry> DecodeEntry(const KeyValue& pair) {
  const std::optional<std::string_view> name = NameOfDentryKey(pair.key);
  if (!name) {
    return Status::Error(EIO, "directory entry: damaged key, run termfs fsck");
  }
  ASSIGN_OR_RETURN(const Dentry dentry, DecodeDentry(pair.value));
  Decoder key(pair.key);
  key.Bytes(1 + sizeof(InodeNumber));
  return DirectoryEntry{std::string(*name), dentry.ino, dentry.type, CursorOf(key.U64(), dentry.index)};
}

// The entries after `cursor` among `pairs`, in the order of cursors, without the last hash if it may be incomplete.
Result<std::vector<DirectoryEntry>> Arrange(const std::vector<KeyValue>& pairs, uint64_t cursor, bool complete) {
  std::vector<DirectoryEntry> entries;
  for (const KeyValue& pair : pairs) {
    ASSIGN_OR_RETURN(DirectoryEntry entry, DecodeEntry(pair));
    entries.push_back(std::move(entry));
  }
  if (!complete) {
    const uint64_t last = HashOfCursor(entries.back().cursor);
    std::erase_if(entries, [last](const DirectoryEntry& entry) { return HashOfCursor(entry.cursor) == last; });
  }
  std::erase_if(entries, [cursor](const DirectoryEntry& entry) { return entry.cursor <= cursor; });
  std::sort(entries.begin(), entries.end(),
            [](const DirectoryEntry& a, const DirectoryEntry& b) { return a.cursor < b.cursor; });
  return entries;
}

Result<std::vector<DirectoryEntry>> Read(Reader& reader, InodeNumber dir, uint64_t cursor, size_t limit) {
  ASSIGN_OR_RETURN(const InodeRecord inode, ReadInode(reader, dir));
  if (!inode.attributes.is_directory()) {
    return Status::Error(ENOTDIR, "not a directory");
  }
  if (limit == 0) {
    return Status::Error(EINVAL, "readdir: no entries asked for");
  }
  const std::string begin = DentryKey(dir, HashOfCursor(std::max(cursor, kFirstCursor)), "");
  const std::string end = DentryKey(dir, kEndHash, "");
  // One more at the front for the entry of the cursor itself, one at the end for the hash that is cut.
  for (size_t count = limit + 2;; count += size_t{1} << kIndexBits) {
    ASSIGN_OR_RETURN(const auto pairs, reader.Scan(begin, end, count));
    const bool complete = pairs.size() < count;
    ASSIGN_OR_RETURN(auto entries, Arrange(pairs, cursor, complete));
    if (!entries.empty() || complete) {
      entries.resize(std::min(entries.size(), limit));
      return entries;
    }
  }
}

}  // namespace

Result<std::vector<DirectoryEntry>> Namespace::ReadDir(InodeNumber dir, uint64_t cursor, size_t limit) {
  const std::unique_ptr<Reader> reader = store_.Snapshot();
  return Read(*reader, dir, cursor, limit);
}

Result<std::vector<DirectoryEntryPlus>> Namespace::ReadDirPlus(InodeNumber dir, uint64_t cursor, size_t limit) {
  const std::unique_ptr<Reader> reader = store_.Snapshot();
  ASSIGN_OR_RETURN(auto entries, Read(*reader, dir, cursor, limit));
  std::vector<DirectoryEntryPlus> result;
  result.reserve(entries.size());
  for (DirectoryEntry& entry : entries) {
    Result<InodeRecord> inode = ReadInode(*reader, entry.ino);
    if (inode.status().code() == ESTALE) {
      return Status::Error(EIO, "a directory entry names no inode: run termfs fsck");
    }
    RETURN_IF_ERROR(inode.status());
    result.push_back({std::move(entry), inode->attributes});
  }
  return result;
}

}  // namespace termfs::metadata
