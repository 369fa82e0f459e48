// SPDX-License-Identifier: Apache-2.0
//
// Check, of inodes and names.
#include <map>

#include "metadata/check_state.h"
#include "metadata/keys.h"
#include "metadata/operation.h"

namespace termfs::metadata {

namespace {

// The inode number at the start of a key; the rest of the key is in `rest`.
InodeNumber InodeOfKey(std::string_view key, std::string_view& rest) {
  Decoder decoder(key);
  decoder.U8();
  const InodeNumber ino = decoder.U64();
  rest = decoder.Rest();
  return ino;
}

// Names as they are may hold any byte.
std::string Printable(std::string_view name) {
  std::string text;
  for (const char c : name) {
    text += c >= 0x20 && c < 0x7f ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
  }
  return text;
}

void CheckDentry(CheckState& state, const KeyValue& pair, std::map<uint64_t, InodeNumber>& cursors) {
  std::string_view rest;
  const InodeNumber dir_ino = InodeOfKey(pair.key, rest);
  const std::optional<std::string_view> name = NameOfDentryKey(pair.key);
  const Result<Dentry> dentry = DecodeDentry(pair.value);
  if (!name || !dentry.ok() || !CheckName(*name).ok()) {
    state.Problem("directory {}: damaged entry", dir_ino);
    return;
  }
  ++state.report.dentries;
  const std::string what = fmt::format("directory {}: entry '{}'", dir_ino, Printable(*name));
  const uint64_t hash = state.hash(*name);
  if (pair.key != DentryKey(dir_ino, hash, *name)) {
    state.Problem("{} has the wrong hash", what);
  }
  if (cursors.begin() != cursors.end() && cursors.begin()->second != dir_ino) {
    cursors.clear();
  }
  if (!cursors.emplace(CursorOf(hash, dentry->index), dir_ino).second) {
    state.Problem("{} has another one's index", what);
  }
  CheckedInode* const inode = state.Find(dentry->ino);
  CheckedInode* const dir = state.Find(dir_ino);
  if (dir == nullptr || !dir->is_directory()) {
    state.Problem("{} is in no directory", what);
  } else {
    ++dir->entries;
    dir->subdirectories += dentry->type == FileType::kDirectory ? 1 : 0;
  }
  if (inode == nullptr) {
    state.Problem("{} names inode {}, which does not exist", what, dentry->ino);
    return;
  }
  ++inode->names;
  inode->named_in = dir_ino;
  if (inode->type() != dentry->type) {
    state.Problem("{} has another type than inode {}", what, dentry->ino);
  }
}

// Goes up from a directory to the root or to what is known already.
void MarkReached(CheckState& state, InodeNumber start) {
  std::vector<CheckedInode*> path;
  bool reached = false;
  for (InodeNumber ino = start; path.size() <= state.inodes.size();) {
    CheckedInode* const inode = state.Find(ino);
    if (inode == nullptr || !inode->is_directory()) {
      break;
    }
    if (ino == kRootInode || inode->reached) {
      reached = true;
      inode->reached = true;
      break;
    }
    path.push_back(inode);
    ino = inode->named_in;
    if (path.size() > 1 && inode == path.front()) {
      break;
    }
  }
  for (CheckedInode* const inode : path) {
    inode->reached = reached;
  }
}

void CompareDirectory(CheckState& state, InodeNumber ino, const CheckedInode& dir) {
  if (dir.size != dir.entries) {
    state.Problem("directory {}: size is {}, but it has {} entries", ino, dir.size, dir.entries);
  }
  if (dir.nlink == 0) {
    return;
  }
  if (dir.nlink != 2 + dir.subdirectories) {
    state.Problem("directory {}: nlink is {}, should be {}", ino, dir.nlink, 2 + dir.subdirectories);
  }
  if (ino == kRootInode) {
    if (dir.names != 0 || dir.parent != kRootInode) {
      state.Problem("root directory: it has a name or a parent");
    }
    return;
  }
  if (dir.names > 1) {
    state.Problem("directory {}: it has {} names", ino, dir.names);
  }
  if (dir.names == 1 && dir.parent != dir.named_in) {
    state.Problem("directory {}: its parent is {}, but it is in {}", ino, dir.parent, dir.named_in);
  }
  if (dir.names != 0 && !dir.reached) {
    state.Problem("directory {}: the root does not lead to it", ino);
  }
}

void CompareInode(CheckState& state, InodeNumber ino, const CheckedInode& inode) {
  if (inode.nlink == 0 && !inode.orphan) {
    state.Problem("inode {}: no links, but it is not listed as an orphan", ino);
  }
  if (inode.nlink != 0 && inode.orphan) {
    state.Problem("inode {}: listed as an orphan, but it has links", ino);
  }
  if (inode.nlink != 0 && inode.names == 0 && ino != kRootInode) {
    state.Problem("inode {}: no directory names it", ino);
  } else if (!inode.is_directory() && inode.nlink != inode.names) {
    state.Problem("inode {}: nlink is {}, but it has {} names", ino, inode.nlink, inode.names);
  }
  if (inode.nlink == 0 && inode.is_directory() && inode.names != 0) {
    state.Problem("directory {}: removed, but it has a name", ino);
  }
  if (inode.truncation && inode.trim_page == kNoTrim) {
    state.Problem("inode {}: listed as truncated, but it is not", ino);
  }
  if (!inode.truncation && inode.trim_page != kNoTrim && inode.nlink != 0) {
    state.Problem("inode {}: its unfinished truncation is not listed", ino);
  }
  if (inode.blocks != inode.pages) {
    state.Problem("inode {}: blocks is {}, but its extents have {} pages", ino, inode.blocks, inode.pages);
  }
  if (inode.xattr_bytes != inode.xattr_found) {
    state.Problem("inode {}: names of attributes should have {} bytes, but have {}", ino, inode.xattr_bytes,
                  inode.xattr_found);
  }
}

}  // namespace

Status CheckInodes(CheckState& state) {
  RETURN_IF_ERROR(ForEachOfType(state.reader, 'I', [&](const KeyValue& pair) {
    std::string_view rest;
    const InodeNumber ino = InodeOfKey(pair.key, rest);
    const Result<InodeRecord> record = DecodeInode(ino, pair.value);
    if (!record.ok() || !rest.empty() || pair.key.size() != InodeKey(ino).size()) {
      state.Problem("inode {}: damaged record", ino);
      return;
    }
    const Attributes& a = record->attributes;
    CheckedInode& inode = state.inodes[ino];
    inode.mode = a.mode;
    inode.nlink = a.nlink;
    inode.size = a.size;
    inode.blocks = a.blocks;
    inode.ahead_end = a.ahead_end;
    inode.cut = static_cast<bool>(a.cut);
    inode.parent = record->parent;
    inode.trim_page = record->trim_page;
    inode.xattr_bytes = record->xattr_bytes;
    inode.project = record->project;
    ++state.report.inodes;
    state.report.directories += a.is_directory() ? 1 : 0;
    const bool wrong_target = a.type() == FileType::kSymlink && a.size != record->symlink_target.size();
    if (wrong_target || (a.type() == FileType::kRegular && a.size > kMaxFileSize)) {
      state.Problem("inode {}: impossible size {}", ino, a.size);
    }
  }));
  const CheckedInode* const root = state.Find(kRootInode);
  if (root == nullptr || !root->is_directory() || root->nlink == 0) {
    state.Problem("the root directory is missing");
  }
  return Status::Ok();
}

Status CheckDentries(CheckState& state) {
  std::map<uint64_t, InodeNumber> cursors;  // of one directory: they come one after the other
  return ForEachOfType(state.reader, 'D', [&](const KeyValue& pair) { CheckDentry(state, pair, cursors); });
}

Status CheckXattrs(CheckState& state) {
  return ForEachOfType(state.reader, 'X', [&](const KeyValue& pair) {
    std::string_view name;
    const InodeNumber ino = InodeOfKey(pair.key, name);
    CheckedInode* const inode = state.Find(ino);
    if (inode == nullptr) {
      state.Problem("attribute of inode {}, which does not exist", ino);
      return;
    }
    if (name.empty() || name.size() > kMaxName || !DecodeBytes(pair.value).ok()) {
      state.Problem("inode {}: damaged attribute", ino);
    }
    inode->xattr_found += name.size() + 1;
  });
}

Status CheckOrphansAndTruncations(CheckState& state) {
  for (const char type : {'O', 'T'}) {
    RETURN_IF_ERROR(ForEachOfType(state.reader, type, [&](const KeyValue& pair) {
      std::string_view rest;
      const InodeNumber ino = InodeOfKey(pair.key, rest);
      CheckedInode* const inode = state.Find(ino);
      if (inode == nullptr || !rest.empty()) {
        state.Problem("{} {}: no such inode", type == 'O' ? "orphan" : "truncation", ino);
        return;
      }
      (type == 'O' ? inode->orphan : inode->truncation) = true;
      state.report.orphans += type == 'O' ? 1 : 0;
    }));
  }
  return Status::Ok();
}

void CompareTree(CheckState& state) {
  for (const auto& [ino, inode] : state.inodes) {
    if (inode.is_directory() && !inode.reached) {
      MarkReached(state, ino);
    }
  }
  for (const auto& [ino, inode] : state.inodes) {
    CompareInode(state, ino, inode);
    if (inode.is_directory()) {
      CompareDirectory(state, ino, inode);
    }
  }
}

}  // namespace termfs::metadata
