// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/memory_file_system.h"

#include <linux/fs.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/clock.h"

namespace termfs::fakes {
namespace {

int64_t Now() { return Clock::System().RealTime().count(); }

}  // namespace

MemoryVolume::MemoryVolume(uint64_t capacity) : capacity_bytes(capacity) {
  WriterLock lock(mutex);
  MemoryNode& root = nodes[fs::kRootInode];
  root.attributes.ino = fs::kRootInode;
  root.attributes.mode = S_IFDIR | 0755;
  root.attributes.nlink = 2;
  root.attributes.mtime = root.attributes.ctime = root.attributes.atime = Now();
  root.parent = fs::kRootInode;
}

MemoryFileSystem::MemoryFileSystem(MemoryVolume& volume, fs::client::KernelCache* cache)
    : volume_(volume), cache_(cache) {
  WriterLock lock(volume_.mutex);
  if (cache_ != nullptr) {
    volume_.caches.insert(cache_);
  }
}

MemoryFileSystem::~MemoryFileSystem() {
  WriterLock lock(volume_.mutex);
  volume_.caches.erase(cache_);
}

Status MemoryFileSystem::CheckServer() const {
  return lost_.load() ? Status::Error(ENOTCONN, "the server is lost") : Status::Ok();
}

Result<MemoryNode*> MemoryFileSystem::Find(uint64_t ino) {
  RETURN_IF_ERROR(CheckServer());
  const auto found = volume_.nodes.find(ino);
  if (found == volume_.nodes.end()) {
    return Status::Error(ESTALE, "inode");
  }
  return &found->second;
}

Result<MemoryNode*> MemoryFileSystem::FindDirectory(uint64_t ino) {
  ASSIGN_OR_RETURN(MemoryNode * node, Find(ino));
  if (!S_ISDIR(node->attributes.mode)) {
    return Status::Error(ENOTDIR, "inode");
  }
  return node;
}

Result<MemoryNode*> MemoryFileSystem::FindEntry(uint64_t parent, std::string_view name) {
  if (name == ".") {
    ASSIGN_OR_RETURN(MemoryNode * node, Find(parent));
    return node->attributes.nlink == 0 ? Status::Error(ESTALE, "removed") : Result<MemoryNode*>(node);
  }
  ASSIGN_OR_RETURN(MemoryNode * directory, FindDirectory(parent));
  if (name == "..") {
    return Find(directory->parent);
  }
  const auto found = directory->cursors.find(std::string(name));
  if (found == directory->cursors.end()) {
    return Status::Error(ENOENT, "entry");
  }
  return Find(directory->entries.at(found->second).second);
}

void MemoryFileSystem::AddEntry(MemoryNode& directory, std::string_view name, uint64_t ino) {
  directory.cursors[std::string(name)] = directory.next_cursor;
  directory.entries[directory.next_cursor++] = {std::string(name), ino};
  directory.attributes.mtime = directory.attributes.ctime = Now();
}

void MemoryFileSystem::RemoveEntry(MemoryNode& directory, std::string_view name) {
  const auto found = directory.cursors.find(std::string(name));
  directory.entries.erase(found->second);
  directory.cursors.erase(found);
  directory.attributes.mtime = directory.attributes.ctime = Now();
}

void MemoryFileSystem::DropIfUnused(MemoryNode& node) {
  if (node.attributes.nlink == 0 && node.opens == 0) {
    volume_.used_bytes -= node.data.size();
    volume_.nodes.erase(node.attributes.ino);
  }
}

void MemoryFileSystem::DropLink(MemoryNode& node) {
  node.attributes.nlink = S_ISDIR(node.attributes.mode) ? 0 : node.attributes.nlink - 1;
  node.attributes.ctime = Now();
  DropIfUnused(node);
}

Result<MemoryNode*> MemoryFileSystem::Make(Caller who, uint64_t parent, std::string_view name, uint32_t mode) {
  if (name.size() > fs::kMaxName) {
    return Status::Error(ENAMETOOLONG, "name");
  }
  ASSIGN_OR_RETURN(MemoryNode * directory, FindDirectory(parent));
  if (directory->cursors.contains(std::string(name))) {
    return Status::Error(EEXIST, "entry");
  }
  const uint64_t ino = volume_.next_ino++;
  MemoryNode& node = volume_.nodes[ino];
  directory = &volume_.nodes.at(parent);
  node.attributes.ino = ino;
  node.attributes.mode = S_ISLNK(mode) ? mode : mode & ~who.umask;
  node.attributes.nlink = 1;
  node.attributes.uid = who.uid;
  node.attributes.gid = who.gid;
  if ((directory->attributes.mode & S_ISGID) != 0) {
    node.attributes.gid = directory->attributes.gid;
    node.attributes.mode |= S_ISDIR(mode) ? static_cast<uint32_t>(S_ISGID) : 0;
  }
  node.attributes.atime = node.attributes.mtime = node.attributes.ctime = Now();
  AddEntry(*directory, name, ino);
  return &node;
}

void MemoryFileSystem::TellOthers(uint64_t ino) {
  std::vector<fs::client::KernelCache*> others;
  {
    ReaderLock lock(volume_.mutex);
    std::copy_if(volume_.caches.begin(), volume_.caches.end(), std::back_inserter(others),
                 [this](const auto* cache) { return cache != cache_; });
  }
  for (fs::client::KernelCache* cache : others) {
    cache->InvalidateInode(ino, 0, 0);
  }
}

Result<fs::Attributes> MemoryFileSystem::Lookup(Lane&, uint64_t parent, std::string_view name) {
  if (name.size() > fs::kMaxName) {
    return Status::Error(ENAMETOOLONG, "name");
  }
  ReaderLock lock(volume_.mutex);
  ASSIGN_OR_RETURN(const MemoryNode* node, FindEntry(parent, name));
  return node->attributes;
}

Result<fs::Attributes> MemoryFileSystem::GetAttributes(Lane&, uint64_t ino) {
  ReaderLock lock(volume_.mutex);
  ASSIGN_OR_RETURN(const MemoryNode* node, Find(ino));
  return node->attributes;
}

Result<fs::Attributes> MemoryFileSystem::Set(Lane&, uint64_t ino, const SetAttributes& what, OpenFile*) {
  Attributes after;
  {
    WriterLock lock(volume_.mutex);
    ASSIGN_OR_RETURN(MemoryNode * node, Find(ino));
    if (what.size) {
      RETURN_IF_ERROR(Resize(*node, *what.size));
    }
    Attributes& now = node->attributes;
    if (what.mode) {
      now.mode = (now.mode & S_IFMT) | *what.mode;
    }
    if (what.clears_privileges) {
      now.mode = (now.mode & S_IFMT) | fs::PermissionsWithoutPrivileges(now.mode);
    }
    if (what.clears_group_id) {
      now.mode &= ~static_cast<uint32_t>(S_ISGID);
    }
    now.uid = what.uid.value_or(now.uid);
    now.gid = what.gid.value_or(now.gid);
    now.atime = what.atime_now ? Now() : what.atime.value_or(now.atime);
    now.mtime = what.mtime_now ? Now() : what.mtime.value_or(now.mtime);
    now.ctime = Now();
    after = now;
  }
  TellOthers(ino);
  return after;
}

Result<fs::Attributes> MemoryFileSystem::MakeDirectory(Lane&, Caller who, uint64_t parent, std::string_view name,
                                                       uint32_t mode) {
  WriterLock lock(volume_.mutex);
  ASSIGN_OR_RETURN(MemoryNode * node, Make(who, parent, name, S_IFDIR | mode));
  node->parent = parent;
  node->attributes.nlink = 2;
  volume_.nodes.at(parent).attributes.nlink++;
  return node->attributes;
}

Result<fs::Attributes> MemoryFileSystem::MakeNode(Lane&, Caller who, uint64_t parent, std::string_view name,
                                                  uint32_t mode, uint32_t rdev) {
  WriterLock lock(volume_.mutex);
  ASSIGN_OR_RETURN(MemoryNode * node, Make(who, parent, name, mode));
  node->attributes.rdev = rdev;
  return node->attributes;
}

Result<fs::Attributes> MemoryFileSystem::Symlink(Lane&, Caller who, uint64_t parent, std::string_view name,
                                                 std::string_view target) {
  WriterLock lock(volume_.mutex);
  ASSIGN_OR_RETURN(MemoryNode * node, Make(who, parent, name, S_IFLNK | 0777));
  node->target = target;
  node->attributes.size = target.size();
  return node->attributes;
}

Result<std::string> MemoryFileSystem::ReadLink(Lane&, uint64_t ino) {
  ReaderLock lock(volume_.mutex);
  ASSIGN_OR_RETURN(const MemoryNode* node, Find(ino));
  return node->target;
}

Result<fs::Attributes> MemoryFileSystem::Link(Lane&, uint64_t ino, uint64_t new_parent, std::string_view new_name) {
  WriterLock lock(volume_.mutex);
  ASSIGN_OR_RETURN(MemoryNode * node, Find(ino));
  ASSIGN_OR_RETURN(MemoryNode * directory, FindDirectory(new_parent));
  if (directory->cursors.contains(std::string(new_name))) {
    return Status::Error(EEXIST, "entry");
  }
  AddEntry(*directory, new_name, ino);
  node->attributes.nlink++;
  node->attributes.ctime = Now();
  return node->attributes;
}

Status MemoryFileSystem::Unlink(Lane&, uint64_t parent, std::string_view name) {
  WriterLock lock(volume_.mutex);
  ASSIGN_OR_RETURN(MemoryNode * node, FindEntry(parent, name));
  if (S_ISDIR(node->attributes.mode)) {
    return Status::Error(EISDIR, "entry");
  }
  RemoveEntry(volume_.nodes.at(parent), name);
  DropLink(*node);
  return Status::Ok();
}

Status MemoryFileSystem::RemoveDirectory(Lane&, uint64_t parent, std::string_view name) {
  WriterLock lock(volume_.mutex);
  ASSIGN_OR_RETURN(MemoryNode * node, FindEntry(parent, name));
  if (!S_ISDIR(node->attributes.mode)) {
    return Status::Error(ENOTDIR, "entry");
  }
  if (!node->entries.empty()) {
    return Status::Error(ENOTEMPTY, "directory");
  }
  RemoveEntry(volume_.nodes.at(parent), name);
  volume_.nodes.at(parent).attributes.nlink--;
  DropLink(*node);
  return Status::Ok();
}

// Removes what a rename finds at its destination.
Status MemoryFileSystem::Replace(MemoryNode& directory, std::string_view name, const MemoryNode& by) {
  ASSIGN_OR_RETURN(MemoryNode * old, FindEntry(directory.attributes.ino, name));
  const bool old_is_directory = S_ISDIR(old->attributes.mode);
  if (old_is_directory != S_ISDIR(by.attributes.mode)) {
    return Status::Error(old_is_directory ? EISDIR : ENOTDIR, "destination");
  }
  if (!old->entries.empty()) {
    return Status::Error(ENOTEMPTY, "destination");
  }
  RemoveEntry(directory, name);
  directory.attributes.nlink -= old_is_directory ? 1 : 0;
  DropLink(*old);
  return Status::Ok();
}

Status MemoryFileSystem::Rename(Lane&, uint64_t parent, std::string_view name, uint64_t new_parent,
                                std::string_view new_name, uint32_t flags) {
  WriterLock lock(volume_.mutex);
  ASSIGN_OR_RETURN(MemoryNode * node, FindEntry(parent, name));
  ASSIGN_OR_RETURN(MemoryNode * to, FindDirectory(new_parent));
  MemoryNode& from = volume_.nodes.at(parent);
  const auto existing = to->cursors.find(std::string(new_name));
  if ((flags & RENAME_EXCHANGE) != 0) {
    if (existing == to->cursors.end()) {
      return Status::Error(ENOENT, "destination");
    }
    std::swap(from.entries.at(from.cursors.at(std::string(name))).second, to->entries.at(existing->second).second);
    return Status::Ok();
  }
  if (existing != to->cursors.end()) {
    if ((flags & RENAME_NOREPLACE) != 0) {
      return Status::Error(EEXIST, "destination");
    }
    if (to->entries.at(existing->second).second == node->attributes.ino) {
      return Status::Ok();
    }
    RETURN_IF_ERROR(Replace(*to, new_name, *node));
  }
  RemoveEntry(from, name);
  AddEntry(*to, new_name, node->attributes.ino);
  if (S_ISDIR(node->attributes.mode)) {
    node->parent = new_parent;
    from.attributes.nlink--;
    to->attributes.nlink++;
  }
  node->attributes.ctime = Now();
  return Status::Ok();
}

Status MemoryFileSystem::RenameLeavingWhiteout(Lane& lane, Caller who, uint64_t parent, std::string_view name,
                                               uint64_t new_parent, std::string_view new_name, uint32_t flags) {
  RETURN_IF_ERROR(Rename(lane, parent, name, new_parent, new_name, flags));
  WriterLock lock(volume_.mutex);
  return Make(who, parent, name, S_IFCHR).status();
}

Result<std::vector<fs::DirectoryEntry>> MemoryFileSystem::ReadDirectory(Lane&, uint64_t ino, uint64_t cursor,
                                                                        size_t max_bytes, bool plus) {
  ReaderLock lock(volume_.mutex);
  ASSIGN_OR_RETURN(MemoryNode * directory, FindDirectory(ino));
  std::vector<fs::DirectoryEntry> entries;
  if (directory->attributes.nlink == 0) {
    return entries;
  }
  const auto add = [&](const std::string& name, const MemoryNode& node, uint64_t at) {
    entries.push_back({name, node.attributes.ino, node.attributes.mode & S_IFMT, at, {}});
    if (plus) {
      entries.back().attributes = node.attributes;
    }
  };
  if (cursor < 1) {
    add(".", *directory, 1);
  }
  if (cursor < 2) {
    add("..", volume_.nodes.at(directory->parent), 2);
  }
  size_t bytes = 0;
  for (auto at = directory->entries.upper_bound(cursor); at != directory->entries.end() && bytes < max_bytes; ++at) {
    add(at->second.first, volume_.nodes.at(at->second.second), at->first);
    bytes += 24 + at->second.first.size();
  }
  return entries;
}

Result<fs::FileSystemStatus> MemoryFileSystem::StatFs(Lane&, uint64_t) {
  RETURN_IF_ERROR(CheckServer());
  ReaderLock lock(volume_.mutex);
  fs::FileSystemStatus status;
  status.capacity_bytes = volume_.capacity_bytes;
  status.free_bytes = volume_.capacity_bytes - volume_.used_bytes;
  status.inodes_used = volume_.nodes.size();
  status.inodes_free = 1'000'000;
  return status;
}

std::vector<MetricValue> MemoryFileSystem::Metrics() const {
  return {{"fs_reads_total", reads_.value()}, {"syncs_total", syncs_.load()}, {"open_files", open_files_.load()}};
}

}  // namespace termfs::fakes
